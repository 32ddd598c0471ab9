"""Keys that a function's arguments fill in: ``"sync:{user_id}"``."""

from __future__ import annotations

from collections.abc import Callable
from string import Formatter
from typing import Any

from .errors import InvalidKey, InvalidOption
from .options import Busy, Unset

_ESCAPES = {ord("%"): "%25", ord(":"): "%3A"}


class _Fields(Formatter):
    """Fills in values so that two different sets of values cannot give one key: 'a:b','c' is not 'a','b:c'."""

    def format_field(self, value: Any, format_spec: str) -> str:
        return str(super().format_field(value, format_spec)).translate(_ESCAPES)


class KeyTemplate:
    """The parts of a key with fields in them. A part that is one field keeps the argument's own type."""

    def __init__(self, parts: tuple[Any, ...]) -> None:
        self.parts = parts
        if len(parts) == 2 and any(
            isinstance(part, str) and _fields_of(part) and not _is_field(part) for part in parts
        ):
            raise InvalidKey(
                f"exclusive: in the key {parts!r} an id is one field and nothing else, as in '{{agent_id}}'"
            )
        self.fields = {name for part in parts if isinstance(part, str) for name in _fields_of(part)}

    def bind(self, function: Callable[..., Any]) -> Callable[[tuple[Any, ...], dict[str, Any]], tuple[Any, ...]]:
        """Gives the key for a call's arguments. Fields that are not parameters of the function are refused here."""
        if not self.fields:
            return lambda args, kwargs: self.parts
        import inspect

        signature = inspect.signature(function)
        unknown = self.fields - set(signature.parameters)
        if unknown:
            names = ", ".join(sorted(unknown))
            called = getattr(function, "__qualname__", repr(function))
            raise InvalidKey(f"exclusive: {called}() has no parameter {names}, which the key names")

        def key_for(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            return tuple(self._fill(part, bound.arguments) for part in self.parts)

        return key_for

    def _fill(self, part: Any, arguments: dict[str, Any]) -> Any:
        if not isinstance(part, str):
            return part
        if len(self.parts) == 2:  # the entity id that goes with a namespace: a number, not text
            return _Fields().get_field(part[1:-1], (), arguments)[0]
        return _Fields().vformat(part, (), arguments)


def _fields_of(part: str) -> list[str]:
    try:
        pieces = list(Formatter().parse(part))
    except ValueError as error:
        raise InvalidKey(f"exclusive: the key {part!r} is not a valid template: {error}") from error
    if any("{" in (spec or "") for _, _, spec, _ in pieces):
        raise InvalidKey(f"exclusive: the key {part!r} has a field inside a field")
    names = [name for _, name, _, _ in pieces if name is not None]
    if any(not name.partition(".")[0].partition("[")[0].isidentifier() for name in names):
        raise InvalidKey(f"exclusive: the key {part!r} must name its fields, as in 'sync:{{user_id}}'")
    return [name.partition(".")[0].partition("[")[0] for name in names]


def _is_field(part: str) -> bool:
    (literal, _, spec, conversion), *others = Formatter().parse(part)
    return not (literal or spec or conversion or others)


def checked_busy(busy: Busy, wait: float | None | Unset) -> float | None | Unset:
    """The wait that goes with ``busy``."""
    if busy not in ("wait", "skip", "raise"):
        raise InvalidOption(f"busy={busy!r}: it is 'wait', 'skip' or 'raise'")
    if busy == "wait":
        return wait
    if not isinstance(wait, Unset):
        raise InvalidOption(f"wait={wait!r} goes with busy='wait'; busy={busy!r} never waits")
    return 0
