"""What is scheduled, and what becomes of it: the two records that everything else is about."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime
from enum import StrEnum
from typing import Any, ClassVar, Final, Literal

ScheduleType = Literal["cron", "interval", "once", "event"]
Misfire = Literal["skip", "run_once", "run_all"]
Recovery = Literal["at_most_once", "at_least_once"]
Status = Literal["active", "paused", "finished"]
Trigger = Literal["schedule", "manual", "event"]


class RunState(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    SKIPPED = "skipped"

    @property
    def final(self) -> bool:
        return self not in (RunState.PENDING, RunState.RUNNING)


@dataclass(kw_only=True)
class ScheduledAction:
    """Something to do, and when. Checked when it is given to a scheduler, not when it is made."""

    # For the API, whose models are made of these fields: what stands below each describes it there, too.
    __pydantic_config__: ClassVar[dict[str, Any]] = {"use_attribute_docstrings": True}

    action_type: str
    """Which of the dispatchers does it."""
    action_config: dict[str, Any] = field(default_factory=dict)
    """What that dispatcher is told."""
    name: str = ""
    id: int | None = None

    schedule_type: ScheduleType = "event"
    """``event``: when its event is fired, or it is triggered by hand."""
    cron_expression: str | None = None
    """Five fields, or six with seconds first."""
    timezone: str = "UTC"
    """By whose clocks its cron expression goes, such as ``Europe/Berlin``."""
    interval_seconds: float | None = None
    run_at: datetime | None = None
    """When a ``once`` is to run."""
    event: str | None = None
    """The name of an event that has it run, beside its schedule."""
    start_at: datetime | None = None
    end_at: datetime | None = None
    max_executions: int | None = None
    """How many runs it may have in all, by its schedule, by hand and for events."""

    allow_concurrent: bool = False
    """Whether a run may begin before the last one has ended, its retries included."""
    misfire: Misfire | None = None
    """What becomes of occurrences that nobody could start in time: ``skip`` (unless said otherwise), ``run_once``,
    ``run_all`` (oldest first, the newest ``misfire_limit`` of them)."""
    misfire_limit: int = 10
    misfire_grace_seconds: float = 60.0
    """How late an occurrence may begin before it counts as missed."""
    jitter_seconds: float = 0.0
    """By how much each occurrence is put off, at most."""
    timeout_seconds: float | None = 3600.0
    """How long an attempt may take; none: as long as it likes, and if it hangs, for ever."""
    max_retries: int = 0
    """How many attempts there may be after the first has failed."""
    retry_delay_seconds: float = 10.0
    recovery: Recovery = "at_most_once"
    """What becomes of a run whose instance died in it."""

    status: Status = "active"
    execution_count: int = 0
    next_occurrence: datetime | None = None
    next_run_at: datetime | None = None
    last_run_at: datetime | None = None
    created_at: datetime | None = None
    updated_at: datetime | None = None


_OWN: Final = frozenset(
    ("id", "execution_count", "next_occurrence", "next_run_at", "last_run_at", "created_at", "updated_at")
)
"""Fields that the scheduler fills in; callers do not."""

GIVEN_FIELDS: Final = frozenset(field.name for field in fields(ScheduledAction)) - _OWN
CHANGEABLE: Final = GIVEN_FIELDS - {"status"}
"""Fields that a change may name. The status changes by pausing and resuming."""


@dataclass(kw_only=True)
class ScheduledRun:
    """One occurrence of an action, or one triggering of it."""

    id: int
    action_id: int
    scheduled_for: datetime
    trigger: Trigger
    idempotency_key: str
    """The same for every attempt: for effects outside the database."""
    state: RunState
    attempt: int = 0
    recoveries: int = 0
    payload: Any = None
    exclusive: bool = True
    due_at: datetime | None = None
    instance: str | None = None
    lease_until: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    duration_seconds: float | None = None
    error: str | None = None
    result: Any = None

    def __post_init__(self) -> None:
        self.state = RunState(self.state)


def run_from(row: Mapping[str, Any]) -> ScheduledRun:
    return ScheduledRun(**{name: value for name, value in row.items() if name != "namespace"})


def action_from(row: Mapping[str, Any]) -> ScheduledAction:
    return ScheduledAction(**{name: value for name, value in row.items() if name != "namespace"})
