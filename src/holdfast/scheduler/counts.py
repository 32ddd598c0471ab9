"""What an instance knows of itself: counted for its own statistics and for Prometheus, logged where it is bad news."""

from __future__ import annotations

import logging
from collections.abc import Container, Iterable
from dataclasses import dataclass
from typing import Final

from . import metrics
from .actions import RunState, ScheduledRun
from .store import Claim, Ending, Settled

_log = logging.getLogger("holdfast.scheduler")

PLACES: Final = ("lock", "claim", "renew", "finish", "tidy", "listen")
"""Where the database can be missed. All are shown from the start: an alert needs a zero to count from."""
for _place in PLACES:
    metrics.database_errors.labels(_place)


@dataclass
class Statistics:
    """Counted by this instance since it was made."""

    claimed: int = 0
    completed: int = 0
    failed: int = 0
    timed_out: int = 0
    cancelled: int = 0
    retried: int = 0
    lost: int = 0
    """Claims that were lost in the middle of a run."""
    refused: int = 0
    """Endings that came too late: the run was another's by then."""
    database_errors: int = 0


@dataclass(frozen=True)
class Health:
    ready: bool
    """Started, and not shutting down."""
    healthy: bool
    """Whether the database answered last time. While it does not, nothing is run."""
    mode: str
    """``cluster``, or ``single-instance`` without a database."""
    running: int
    last_error: str | None


class Counts:
    def __init__(self, instance: str, action_types: Container[str]) -> None:
        self.statistics = Statistics()
        self.healthy = True
        self.last_error: str | None = None
        self._instance = instance
        self._action_types = action_types

    def began(self, claim: Claim) -> None:
        self.statistics.claimed += 1
        metrics.claims.labels(self._label(claim.action.action_type)).inc()
        metrics.running.inc()
        if claim.run.attempt == 1 and claim.run.started_at is not None:
            metrics.start_delay.observe(max(0.0, (claim.run.started_at - claim.due).total_seconds()))

    def let_go(self) -> None:
        """Of an attempt that began, whatever became of it."""
        metrics.running.dec()

    def ended(self, action_type: str, ending: Ending, *, taken: bool) -> None:
        counts = self.statistics
        if not taken:
            counts.refused += 1
            metrics.refused.inc()
            _log.warning("action=ending_refused run=%s attempt=%s: not ours any more", *ending.of)
        elif ending.retry_in is not None:
            counts.retried += 1
            self._outcome(action_type, "retried")
        else:
            name = {RunState.TIMEOUT: "timed_out"}.get(ending.state, str(ending.state))
            setattr(counts, name, getattr(counts, name) + 1)
            self._outcome(action_type, "handed_back" if ending.handed_back else ending.state)

    def settled(self, settled: Iterable[Settled]) -> None:
        for action_type, state in settled:
            self._outcome(action_type, state)

    def lost(self, run: ScheduledRun, why: str) -> None:
        self.statistics.lost += 1
        metrics.lost.inc()
        _log.warning("action=claim_lost action_id=%s run=%s attempt=%s: %s", run.action_id, run.id, run.attempt, why)

    def trouble(self, place: str, error: BaseException) -> None:
        """The database could not be asked: what was to be done is left undone."""
        self.statistics.database_errors += 1
        metrics.database_errors.labels(place).inc()
        self.healthy = False
        self.last_error = f"{place}: {type(error).__name__}: {error}"
        _log.warning("action=%s_failed instance=%s error=%s", place, self._instance, error)

    def deaf(self, error: BaseException) -> None:
        """Announcements are not heard for now. It goes on by looking, so it is not unwell."""
        metrics.database_errors.labels("listen").inc()
        _log.warning("action=listen_failed instance=%s error=%s", self._instance, str(error).partition("\n")[0])

    def answered(self) -> None:
        self.healthy = True

    def _outcome(self, action_type: str, outcome: str) -> None:
        metrics.ended.labels(self._label(action_type), str(outcome)).inc()

    def _label(self, action_type: str) -> str:
        return action_type if action_type in self._action_types else "unknown"
