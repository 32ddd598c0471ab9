"""What is counted about scheduled runs, with prometheus-client (``holdfast[metrics]``). Without it, nothing is.

Of this process: its runs, and what it ended of others'. ``action_type`` is one that has a dispatcher here, else
``unknown``: whatever is in the table, there are no more label values than dispatchers.
"""

from __future__ import annotations

from typing import Final

from ..prometheus import Counter, Gauge, Histogram

_LATE: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0, 300.0)

claims: Final = Counter(
    "holdfast_scheduler_claims_total",
    "Attempts at runs that this process has claimed",
    ["action_type"],
)
ended: Final = Counter(
    "holdfast_scheduler_ended_total",
    "Attempts that were recorded as completed, failed, timeout, cancelled, to be retried or handed_back; "
    "and runs that were ended without one: skipped, or failed with their instance",
    ["action_type", "outcome"],
)
refused: Final = Counter(
    "holdfast_scheduler_endings_refused_total",
    "Endings that came too late: the run was another instance's by then",
)
lost: Final = Counter("holdfast_scheduler_claims_lost_total", "Claims that were lost before their attempt had ended")
database_errors: Final = Counter(
    "holdfast_scheduler_database_errors_total",
    "Times the database could not be asked, and nothing was run for it: in lock, claim, renew, finish, tidy or listen",
    ["place"],
)
running: Final = Gauge(
    "holdfast_scheduler_running",
    "Attempts that this process is at now",
    multiprocess_mode="livesum",
)
start_delay: Final = Histogram(
    "holdfast_scheduler_start_delay_seconds",
    "From when a run was due to when its first attempt was claimed, by the database's clock",
    buckets=_LATE,
)
