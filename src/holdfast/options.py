"""What a call may ask for, checked: every mistake comes out before anything is acquired."""

from __future__ import annotations

from typing import Final, Literal

from .deadline import seconds
from .engines.base import NOT_DETACHABLE, Engine
from .errors import InvalidOption
from .keys import Key

DEFAULT_WAIT: Final = 15.0
DEFAULT_TTL: Final = 30.0


class Unset:
    """The type of ``UNSET``, which stands for the client's own default: ``None`` means *without limit*."""

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final = Unset()

Busy = Literal["wait", "skip", "raise"]
Unavailable = Literal["refuse", "proceed"]
"""What becomes of a block whose engine cannot be reached: ``BackendUnavailable``, or it runs without a lock."""


def checked_space(space: str) -> str:
    if not isinstance(space, str):
        raise InvalidOption(f"space={space!r}: give a string")
    Key.of("any", space=space)
    return space


def checked_ttl(engine: Engine, ttl: float | None, key: Key | None) -> float | None:
    expiring = engine.capabilities.expiring
    if ttl is None:
        return DEFAULT_TTL if expiring else None
    if not expiring:
        raise engine.unsupported(f"ttl={ttl!r}", "its locks have no lease; leave ttl out", key)
    checked = seconds("ttl", ttl)
    if not checked:
        raise InvalidOption(f"ttl={ttl!r}: a lease lasts more than 0 seconds, and ends", key=key)
    return checked


def checked_owner(engine: Engine, owner: str, key: Key) -> str:
    if not isinstance(owner, str) or not owner:
        raise InvalidOption(f"owner={owner!r}: give a string that is not empty", key=key)
    if "\0" in owner or not _is_unicode(owner):  # which some server would store as another owner's, or not at all
        raise InvalidOption(f"owner={owner!r}: give text without NUL and lone surrogates", key=key)
    if not engine.capabilities.detachable:
        raise engine.unsupported("owner=", NOT_DETACHABLE, key)
    return owner


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def checked_note(note: str | None) -> str | None:
    if note is not None and not isinstance(note, str):
        raise InvalidOption(f"note={note!r}: give a string")
    return note


def proceeds(unavailable: str) -> bool:
    if unavailable not in ("refuse", "proceed"):
        raise InvalidOption(f"unavailable={unavailable!r}: it is 'refuse' or 'proceed'")
    return unavailable == "proceed"
