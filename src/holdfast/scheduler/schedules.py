"""When an action is to run, by its schedule alone: pure, and in whatever time zone it names.

Cron is read by ``cronsim``, which does what Debian's cron does when clocks change: what is to happen at a fixed time
that is left out happens right after the gap, what is to happen at one that comes twice happens once, and what happens
every so often goes on doing so.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import dropwhile, islice, takewhile
from zoneinfo import ZoneInfo

from cronsim import CronSim

from .actions import ScheduledAction


def first_occurrence(action: ScheduledAction, now: datetime) -> datetime | None:
    """The first one from ``now`` on, or, of a ``once``, its time even if it has passed."""
    if action.schedule_type == "once":
        return _within(action, action.run_at)
    return _within(action, next(_from(action, max(now, action.start_at or now)), None))


def occurrence_after(action: ScheduledAction, occurrence: datetime) -> datetime | None:
    if action.schedule_type == "once":
        return None
    return _within(action, next(_from(action, occurrence + timedelta(microseconds=1)), None))


def newest_occurrences(action: ScheduledAction, oldest: datetime, now: datetime, count: int) -> list[datetime]:
    """The last ``count`` occurrences from ``oldest`` to ``now``, in order; ``oldest`` is one."""
    if action.schedule_type == "once":
        return [oldest]
    until, back = min(now, action.end_at or now), count
    while True:
        begin = max(oldest, _well_before(action, oldest, until, back))
        found = list(takewhile(lambda moment: moment <= until, _from(action, begin)))[-count:]
        if len(found) == count or begin == oldest:
            return found or [oldest]
        back *= 2


def _within(action: ScheduledAction, moment: datetime | None) -> datetime | None:
    if moment is None or (action.end_at is not None and moment > action.end_at):
        return None
    return moment


def _from(action: ScheduledAction, moment: datetime) -> Iterator[datetime]:
    """Every occurrence that is not before ``moment``."""
    if action.schedule_type == "cron":
        return dropwhile(lambda found: found < moment, _crons(action, moment))
    if action.schedule_type == "interval":
        return _intervals(action, moment)
    return iter(())


def _crons(action: ScheduledAction, moment: datetime) -> Iterator[datetime]:
    """From ``moment`` on; and perhaps one just before: in an hour that comes twice, what is fixed is in its first."""
    fields = _expression(action).split()
    # CronSim looks for what is later than what it is given, to the second.
    before = _local(action, moment - timedelta(microseconds=1))
    if len(fields) == 5 or "*" in (fields[1][0], fields[2][0]):
        return (found.astimezone(UTC) for found in CronSim(_expression(action), before))
    # It knows fixed times by their five fields only: so its minutes are asked for, and their seconds are added.
    seconds = [timedelta(seconds=second) for second in sorted(CronSim(_expression(action), before).seconds)]
    minutes = CronSim(" ".join(fields[1:]), _local(action, moment - timedelta(minutes=1)))
    return (minute.astimezone(UTC) + second for minute in minutes for second in seconds)


def _intervals(action: ScheduledAction, moment: datetime) -> Iterator[datetime]:
    # Counted from one fixed moment, not from the last occurrence: so they do not drift.
    interval, anchor = timedelta(seconds=action.interval_seconds or 0), _anchor(action)
    number = max(0 if action.start_at else 1, -((anchor - moment) // interval))
    while True:
        yield anchor + number * interval
        number += 1


def _anchor(action: ScheduledAction) -> datetime:
    anchor = action.start_at or action.created_at
    assert anchor is not None, "an interval is counted from the creation of its action"
    return anchor


def _well_before(action: ScheduledAction, oldest: datetime, moment: datetime, count: int) -> datetime:
    """A moment from which about ``count`` occurrences come, or all from ``oldest`` on, without counting all of them.

    Found by going backwards. What is found so only marks a place: occurrences are always counted forwards from there,
    since around a change of clocks the two ways need not meet the same moments. (Where clocks change by half an hour
    they do not even meet as many.)
    """
    if action.schedule_type == "interval":
        interval = timedelta(seconds=action.interval_seconds or 0)
        return moment - min(count + 1, (moment - oldest) // interval + 1) * interval
    start = _local(action, moment + timedelta(seconds=1))
    backwards = takewhile(lambda found: found >= oldest, CronSim(_expression(action), start, reverse=True))
    found = list(islice(backwards, count + 2))
    return found[-1].astimezone(UTC) - timedelta(hours=3) if found else oldest


def _local(action: ScheduledAction, moment: datetime) -> datetime:
    return moment.astimezone(ZoneInfo(action.timezone))


def _expression(action: ScheduledAction) -> str:
    assert action.cron_expression is not None
    return action.cron_expression
