"""What can be configured: in ``holdfast.toml``, and in the environment, which wins.

Each section is a dataclass here; its fields are the settings, checked one by one::

    [session.lock]                                      # or, field by field:
    timeout_seconds = 30                                # HOLDFAST_SESSION_LOCK_TIMEOUT_SECONDS=30

The file is the one that ``HOLDFAST_CONFIG`` names, else ``holdfast.toml`` in the current folder, if there is one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any, ClassVar, Final, TypeVar

from .deadline import seconds
from .errors import InvalidOption
from .keys import checked_prefix

FILE: Final = "holdfast.toml"
FILE_VARIABLE: Final = "HOLDFAST_CONFIG"


class Section:
    """The settings under one heading."""

    heading: ClassVar[str]

    def __post_init__(self) -> None:
        for setting in fields(self):  # type: ignore[arg-type]
            checked = _checked(setting, getattr(self, setting.name), f"{self.heading}.{setting.name}")
            object.__setattr__(self, setting.name, checked)


S = TypeVar("S", bound=Section)


def _number(value: Any) -> float:
    return value if not isinstance(value, str) else float(value)  # from the environment all comes as text


def _duration(value: Any) -> float:
    checked = seconds("", _number(value))
    if not checked:
        raise ValueError("give seconds, more than 0")
    return checked


def _wait(value: Any) -> float:
    checked = seconds("", _number(value))
    if checked is None:
        raise ValueError("give seconds; 0 tries once")
    return checked


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("give a string")
    return value


def _words(value: Any) -> tuple[str, ...]:
    words = value.split(",") if isinstance(value, str) else value
    if not isinstance(words, list | tuple) or not all(isinstance(word, str) and word.strip() for word in words):
        raise ValueError("give a list of strings; in the environment, with commas between")
    return tuple(word.strip() for word in words)


def _setting(default: Any, check: Callable[[Any], Any], *, secret: bool = False) -> Any:
    return field(default=default, repr=not secret, metadata={"check": check, "secret": secret})


@dataclass(frozen=True)
class SessionLockSettings(Section):
    """How conversations are locked."""

    heading: ClassVar[str] = "session.lock"

    timeout_seconds: float = _setting(30.0, _duration)
    """The lease: how long a holder that died keeps others out."""
    blocking_timeout_seconds: float = _setting(5.0, _wait)
    """How long to wait for a lock that is busy."""
    key_prefix: str = _setting("sesslock", checked_prefix)
    url: str = _setting("", _text, secret=True)
    """Where the locks live, for a ``SessionLock`` that is not given a client."""
    channels: tuple[str, ...] = _setting(
        (
            "web",
            "mobile",
            "sms",
            "whatsapp",
            "telegram",
            "messenger",
            "slack",
            "teams",
            "discord",
            "email",
            "voice",
            "api",
        ),
        _words,
    )
    """Channels that metrics tell apart; all others are counted as one."""


def load(kind: type[S], *, file: str | os.PathLike[str] | None = None, environ: Mapping[str, str] | None = None) -> S:
    """The section as it is configured now. A mistake is ``InvalidOption``, which names the field and where it is."""
    environ = os.environ if environ is None else environ
    given = _from_file(kind, _path(file, environ)) | _from_environment(kind, environ)
    return kind(**given)


_current: dict[type[Section], Section] = {}


def current(kind: type[S]) -> S:
    """The section as it was configured when this process first asked for it."""
    found = _current.get(kind)
    if found is None:
        found = _current[kind] = load(kind)
    assert isinstance(found, kind)
    return found


def forget() -> None:
    """Has ``current`` read everything anew."""
    _current.clear()


def _path(file: str | os.PathLike[str] | None, environ: Mapping[str, str]) -> str | os.PathLike[str] | None:
    named = file or environ.get(FILE_VARIABLE)
    if named and not os.path.isfile(named):
        raise InvalidOption(f"{named}: there is no such file" + ("" if file else f" ({FILE_VARIABLE} names it)"))
    return named or (FILE if os.path.isfile(FILE) else None)


def _from_file(kind: type[S], path: str | os.PathLike[str] | None) -> dict[str, Any]:
    if path is None:
        return {}
    import tomllib

    with open(path, "rb") as file:
        try:
            table: Any = tomllib.load(file)
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise InvalidOption(f"{os.fspath(path)}: {error}") from None
    for word in kind.heading.split("."):
        table = table.get(word, {})
        if not isinstance(table, dict):
            raise InvalidOption(f"{os.fspath(path)}: {kind.heading}: {word} is no table")
    known = _by_name(kind)
    given = {}
    for name, value in table.items():
        where = f"{os.fspath(path)}: {kind.heading}.{name}"
        if name not in known:
            raise InvalidOption(f"{where}: there is no such setting; there are {', '.join(known)}")
        given[name] = _checked(known[name], value, where)
    return given


def _from_environment(kind: type[S], environ: Mapping[str, str]) -> dict[str, Any]:
    start = f"HOLDFAST_{kind.heading.upper().replace('.', '_')}_"
    known = _by_name(kind)
    given = {}
    for variable, value in environ.items():
        if variable.startswith(start):
            name = variable.removeprefix(start).lower()
            if name not in known:
                raise InvalidOption(f"{variable}: there is no such setting; there are {', '.join(known)}")
            given[name] = _checked(known[name], value, variable)
    return given


def _by_name(kind: type[S]) -> dict[str, Field[Any]]:
    return {setting.name: setting for setting in fields(kind)}  # type: ignore[arg-type]


def _checked(setting: Field[Any], value: Any, where: str) -> Any:
    try:
        return setting.metadata["check"](value)
    except ValueError as error:
        shown = "" if setting.metadata["secret"] else f"={value!r}"
        raise InvalidOption(f"{where}{shown}: {str(error).lstrip('=')}") from None
