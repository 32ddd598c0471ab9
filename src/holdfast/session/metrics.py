"""What is counted about session locks, with prometheus-client (``holdfast[metrics]``). Without it, nothing is."""

from __future__ import annotations

from typing import Any, Final


class _Nothing:
    """Stands for every metric where none can be kept."""

    def __init__(self, *about: object, **options: object) -> None: ...

    def labels(self, *values: str) -> _Nothing:
        return self

    def inc(self) -> None: ...

    def observe(self, value: float) -> None: ...


_Counter: Any
_Histogram: Any
try:
    from prometheus_client import Counter as _Counter
    from prometheus_client import Histogram as _Histogram
except ImportError:
    _Counter = _Histogram = _Nothing

_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

acquire_duration: Final = _Histogram(
    "session_lock_acquire_duration_seconds",
    "Time to acquire a session lock, of those that were acquired",
    ["session_key_pattern"],
    buckets=_BUCKETS,
)
waits: Final = _Counter("session_lock_wait_total", "Acquisitions that had to wait")
failures: Final = _Counter(
    "session_lock_failure_total",
    "Acquisitions that failed: timeout, cancelled, refused, or that the server could not be asked (redis_error)",
    ["reason"],
)
unprotected: Final = _Counter("session_lock_unprotected_total", "Blocks that ran without a lock, as they were told to")
