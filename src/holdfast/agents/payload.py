"""A hook's payload: what of it must be right, what tells it from any other, and the rest, which is kept as it came."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Final, NamedTuple

from ..errors import LockError

MAX_DEPTH: Final = 100
_LONGEST: Final = {"session_id": 200, "hook_event_name": 100, "prompt_id": 200, "tool_use_id": 200}
_LONGEST_PATH: Final = 4096
_LONGEST_LABEL: Final = 200


class Malformed(LockError, ValueError):
    """The payload cannot be taken."""

    def __init__(self, message: str, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class Report(NamedTuple):
    """One event as a client reported it."""

    session_id: str
    name: str
    text: str
    """The body, word for word."""
    identity: str | None
    digest: bytes
    delivery_id: str | None = None
    late: bool = False


def read(body: bytes, *, event: str | None = None, delivery_id: str | None = None, late: bool = False) -> Report:
    """Checks a body. ``event`` is what it was sent as, if the address says so."""
    payload = _parsed(body)
    session_id = _plain_name(payload, "session_id")
    if session_id is None:
        raise Malformed("is missing", "session_id")
    name = _plain_name(payload, "hook_event_name") or event
    if name is None:
        raise Malformed("is missing", "hook_event_name")
    if event is not None and name != event:
        raise Malformed(f"is {name}, but this address takes {event}", "hook_event_name")
    if delivery_id is not None and (not _is_plain(delivery_id) or len(delivery_id) > 100):
        raise Malformed("must be 1 to 100 visible ASCII characters", "Holdfast-Delivery")
    for path in ("cwd", "transcript_path"):
        _check_path(payload, path)
    identity = _identity(name, _plain_name(payload, "tool_use_id"), _plain_name(payload, "prompt_id"))
    return Report(session_id, name, body.decode(), identity, hashlib.sha256(body).digest(), delivery_id, late)


def storable(value: object) -> str | None:
    """Text as PostgreSQL can hold it; None if it is no text. Only NUL and lone surrogates are replaced."""
    if not isinstance(value, str):
        return None
    return value.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


def label(value: object) -> str | None:
    """What is shown as a word or two: a model, a mode. None if it is no text, and never long."""
    text = storable(value)
    return None if text is None else text[:_LONGEST_LABEL]


def _parsed(body: bytes) -> dict[str, Any]:
    try:
        payload = json.loads(body.decode("utf-8"), parse_constant=_no_such_number)
    except RecursionError:
        raise Malformed("is nested too deeply") from None
    except ValueError as error:  # also: not UTF-8, a number of thousands of digits
        raise Malformed(f"is not JSON: {storable(str(error))}") from None
    if not isinstance(payload, dict):
        raise Malformed("is not a JSON object")
    _check_depth(payload)
    return payload


def _no_such_number(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def _check_depth(payload: dict[str, Any]) -> None:
    level: list[Any] = [payload]
    for _ in range(MAX_DEPTH):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return
    raise Malformed(f"is nested more than {MAX_DEPTH} levels deep")


def _is_plain(text: str) -> bool:
    return bool(text) and text.isascii() and all("!" <= character <= "~" for character in text)


def _plain_name(payload: dict[str, Any], field: str) -> str | None:
    value = payload.get(field)
    if value is None:
        return None
    if not isinstance(value, str) or len(value) > _LONGEST[field] or not _is_plain(value):
        raise Malformed(f"must be 1 to {_LONGEST[field]} visible ASCII characters", field)
    return value


def _check_path(payload: dict[str, Any], field: str) -> None:
    value = payload.get(field)
    if value is None:
        return
    if not isinstance(value, str) or len(value) > _LONGEST_PATH or storable(value) != value:
        raise Malformed(f"must be text of at most {_LONGEST_PATH} characters", field)


def _identity(name: str, tool_use_id: str | None, prompt_id: str | None) -> str | None:
    if tool_use_id is not None:
        return f"{name} {tool_use_id}"
    if name == "UserPromptSubmit" and prompt_id is not None:
        return f"{name} {prompt_id}"
    return None
