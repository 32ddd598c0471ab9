"""What becomes of an action that is due: which occurrence is started, which are not, and when it is due again. Pure.

Every store decides by this, inside its claim: with the row as it is under the lock, and the database's time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from random import random
from typing import Final, NamedTuple

from .actions import ScheduledAction, Status
from .schedules import first_occurrence, newest_occurrences, occurrence_after

BUSY: Final = "another run of this action has not ended yet"
LOOK_AGAIN: Final = timedelta(seconds=0.25)
"""When an action that catches up (``run_all``) while its last run has not ended is looked at again."""

MAX_RECOVERIES: Final = 5
"""How often a run is given to another instance before it counts as what kills them."""


class Skip(NamedTuple):
    scheduled_for: datetime
    reason: str


class Plan(NamedTuple):
    start: datetime | None
    """The occurrence to run now."""
    skipped: list[Skip]
    """What is recorded as not run; of many that were missed, the newest stands for all."""
    after: ScheduledAction
    """The action as it is to be stored."""


def plan_due(action: ScheduledAction, now: datetime, *, busy: bool, chance: Callable[[], float] = random) -> Plan:
    """``busy``: it has an unfinished run and does not allow two. ``chance``: for jitter, from 0 to 1."""
    assert action.next_occurrence is not None
    try:
        return _plan_due(action, now, busy, chance)
    except Exception as error:  # whoever wrote to the table past our checks: that action stops, the others do not
        reason = f"paused: its schedule cannot be read ({type(error).__name__}: {error})"
        return Plan(None, [Skip(action.next_occurrence, reason)], replace(action, status="paused"))


def _plan_due(action: ScheduledAction, now: datetime, busy: bool, chance: Callable[[], float]) -> Plan:
    start, last, missed = _judge_misfire(action, now)
    if start is not None and busy:
        if action.misfire == "run_all":
            return Plan(None, missed, replace(action, next_occurrence=start, next_run_at=now + LOOK_AGAIN))
        return Plan(None, [*missed, Skip(start, BUSY)], scheduled(action, occurrence_after(action, last), chance))
    if start is None:
        return Plan(None, missed, scheduled(action, occurrence_after(action, last), chance))
    counted = replace(action, execution_count=action.execution_count + 1, last_run_at=now)
    return Plan(start, missed, scheduled(counted, occurrence_after(action, last), chance))


def _judge_misfire(action: ScheduledAction, now: datetime) -> tuple[datetime | None, datetime, list[Skip]]:
    """The occurrence to start, the one from which to go on counting, and those that are left out."""
    oldest, due = action.next_occurrence, action.next_run_at
    assert oldest is not None and due is not None
    # What jitter puts off is not late: it is judged as if it were so much earlier.
    now -= min(due - oldest, timedelta(seconds=action.jitter_seconds))
    grace = timedelta(seconds=action.misfire_grace_seconds)
    following = occurrence_after(action, oldest)
    overtaken = following is not None and following <= now
    if not overtaken and (now - oldest <= grace or action.misfire != "skip"):
        return oldest, oldest, []
    kept = newest_occurrences(action, oldest, now, action.misfire_limit if action.misfire == "run_all" else 1)
    if action.misfire == "run_all":
        return kept[0], kept[0], _missed(oldest, _before(action, kept[0], oldest))
    newest = kept[-1]
    if action.misfire == "skip" and now - newest > grace:
        return None, newest, _missed(oldest, newest)
    return newest, newest, _missed(oldest, _before(action, newest, oldest))


def _before(action: ScheduledAction, occurrence: datetime, oldest: datetime) -> datetime | None:
    """The one before ``occurrence``, if it is not older than ``oldest``."""
    if occurrence <= oldest:
        return None
    return newest_occurrences(action, oldest, occurrence - timedelta(microseconds=1), 1)[-1]


def _missed(oldest: datetime, newest: datetime | None) -> list[Skip]:
    if newest is None:
        return []
    since = "" if newest == oldest else f", with all since {oldest.isoformat()}"
    return [Skip(newest, f"missed: no instance could start it in time{since}")]


def scheduled(
    action: ScheduledAction, occurrence: datetime | None, chance: Callable[[], float] = random
) -> ScheduledAction:
    """The action with this as its next occurrence; finished, if there is none and it goes by time."""
    spent = action.max_executions is not None and action.execution_count >= action.max_executions
    if spent or occurrence is None:
        # What waits for events is finished only when it may not run again.
        status: Status = "finished" if spent or action.schedule_type != "event" else action.status
        return replace(action, next_occurrence=None, next_run_at=None, status=status)
    due = occurrence + timedelta(seconds=action.jitter_seconds * chance())
    return replace(action, next_occurrence=occurrence, next_run_at=due)


def counted(action: ScheduledAction, now: datetime) -> ScheduledAction:
    """The action after one more run beside its schedule: by hand, or for an event."""
    after = replace(action, execution_count=action.execution_count + 1, last_run_at=now)
    if after.max_executions is not None and after.execution_count >= after.max_executions:
        return replace(after, status="finished", next_occurrence=None, next_run_at=None)
    return after


def runs_when_executed(action: ScheduledAction) -> bool:
    """Whether executing it is a run now. What goes by time and shows no next occurrence has had its last."""
    return action.schedule_type == "event" and action.status == "active"


def listens(action: ScheduledAction, now: datetime) -> bool:
    """Whether events are for it: between its start and its end only, as its schedule is."""
    started = action.start_at is None or action.start_at <= now
    return action.status == "active" and started and (action.end_at is None or now <= action.end_at)


def scheduled_anew(action: ScheduledAction, now: datetime) -> ScheduledAction:
    """The action as it goes on from ``now``: when it is created, resumed, or its schedule was changed."""
    return scheduled(replace(action, status="active"), first_occurrence(action, now))
