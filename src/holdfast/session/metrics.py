"""What is counted about session locks, with prometheus-client (``holdfast[metrics]``). Without it, nothing is."""

from __future__ import annotations

from typing import Final

from ..prometheus import Counter, Histogram

_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

acquire_duration: Final = Histogram(
    "session_lock_acquire_duration_seconds",
    "Time to acquire a session lock, of those that were acquired",
    ["session_key_pattern"],
    buckets=_BUCKETS,
)
waits: Final = Counter("session_lock_wait_total", "Acquisitions that had to wait")
failures: Final = Counter(
    "session_lock_failure_total",
    "Acquisitions that failed: timeout, cancelled, refused, or that the server could not be asked (redis_error)",
    ["reason"],
)
unprotected: Final = Counter("session_lock_unprotected_total", "Blocks that ran without a lock, as they were told to")
