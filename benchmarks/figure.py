"""One measured number, and how it is shown."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Figure(NamedTuple):
    """A number and, if it has one, the most it may be. Figures of a floor or a peer have no bound."""

    name: str
    value: float
    unit: str
    bound: float | None = None

    @property
    def met(self) -> bool:
        return self.bound is None or self.value <= self.bound

    def __str__(self) -> str:
        mark = " " if self.bound is None else "✓" if self.met else "✗"
        limit = "" if self.bound is None else f"  at most {_short(self.bound)}"
        return f"  {mark} {self.name:<52}{_short(self.value):>10} {self.unit:<14}{limit}".rstrip()


def show(figures: Iterable[Figure]) -> bool:
    """Prints them, one on a line. Whether every bound was met."""
    all_met = True
    for figure in figures:
        print(figure, flush=True)
        all_met = all_met and figure.met
    return all_met


def _short(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
