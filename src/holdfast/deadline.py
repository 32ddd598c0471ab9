"""The one instant by which a call must end. It is fixed when the call begins; every wait inside takes what is left."""

from __future__ import annotations

from math import inf
from time import monotonic

from .errors import InvalidOption

_LONGEST = 1e300  # an int may be greater than any float


class Deadline:
    """An instant on the monotonic clock, or never."""

    __slots__ = ("at",)

    def __init__(self, at: float = inf) -> None:
        self.at = at

    @classmethod
    def after(cls, wait: float | None) -> Deadline:
        """The deadline that lies ``wait`` seconds ahead; ``None`` is never."""
        return cls(inf if wait is None else monotonic() + wait)

    @property
    def remaining(self) -> float:
        """Seconds left: never negative, ``inf`` where there is no limit."""
        return max(0.0, self.at - monotonic())

    @property
    def passed(self) -> bool:
        return self.at <= monotonic()

    def __repr__(self) -> str:
        return "<Deadline never>" if self.at == inf else f"<Deadline in {self.at - monotonic():.3f} s>"


def seconds(option: str, value: float | None) -> float | None:
    """``value`` checked as the option's number of seconds; ``None`` and infinity both mean no limit."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidOption(f"{option}={value!r}: give seconds as a number, or None for no limit")
    if not value >= 0:  # also catches NaN
        raise InvalidOption(f"{option}={value!r}: seconds cannot be negative; 0 tries once, None waits without limit")
    return None if value > _LONGEST else float(value)
