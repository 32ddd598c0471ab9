"""prometheus-client's metrics (``holdfast[metrics]``), or, where it is not installed, ones that count nothing."""

from __future__ import annotations

from typing import Any


class _Nothing:
    """Stands for every metric where none can be kept."""

    def __init__(self, *about: object, **options: object) -> None: ...

    def labels(self, *values: str) -> _Nothing:
        return self

    def inc(self, amount: float = 1) -> None: ...

    def dec(self, amount: float = 1) -> None: ...

    def observe(self, value: float) -> None: ...


Counter: Any
Gauge: Any
Histogram: Any
try:
    from prometheus_client import Counter, Gauge, Histogram
except ImportError:
    Counter = Gauge = Histogram = _Nothing

__all__ = ["Counter", "Gauge", "Histogram"]
