"""Bad input is refused with the name of the field that is wrong, before anything is stored."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable
from dataclasses import replace
from datetime import UTC, datetime
from math import isfinite
from typing import Any, Final, get_args
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from ..errors import InvalidOption
from .actions import Misfire, Recovery, ScheduledAction, ScheduleType, Status
from .schedules import first_occurrence

MIN_INTERVAL: Final = 1.0
_MAX_INT32: Final = 2**31 - 1
_LONGEST: Final = 10 * 366 * 86400.0
_MOST_MISSED: Final = 1000
_EARLIEST, _LATEST = datetime(1970, 1, 1, tzinfo=UTC), datetime(9000, 1, 1, tzinfo=UTC)
"""Well inside what Python and PostgreSQL can both count with, in any time zone."""
_CONFIG_BYTES: Final = 256 * 1024
_DEEPEST: Final = 100
"""Levels. Pydantic gives up at some 250, and then no list with such a record in it could be shown."""


class InvalidField(InvalidOption):
    """A field of an action cannot be used."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field


def checked(action: ScheduledAction, now: datetime, action_types: Collection[str]) -> ScheduledAction:
    """The action with what was left open filled in."""
    _one_of("schedule_type", action.schedule_type, get_args(ScheduleType))
    _one_of("action_type", action.action_type, tuple(action_types))
    _one_of("recovery", action.recovery, get_args(Recovery))
    _one_of("status", action.status, get_args(Status))
    if action.misfire is not None:
        _one_of("misfire", action.misfire, get_args(Misfire))
    _texts(action)
    _numbers(action)
    _times(action)
    _schedule(action, now)
    return replace(action, misfire=action.misfire or "skip")


def checked_json(field: str, value: Any, limit: int = _CONFIG_BYTES) -> str:
    """As JSON that PostgreSQL takes, too."""
    try:
        text = json.dumps(value, allow_nan=False, ensure_ascii=False)
        size = len(text.encode())
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidField(field, f"is not JSON: {error}") from None
    if "\\u0000" in text:
        raise InvalidField(field, "has a NUL character in it")
    if nested_too_deeply(value):
        raise InvalidField(field, f"is nested more than {_DEEPEST} levels deep")
    if size > limit:
        raise InvalidField(field, f"is {size} bytes long; at most {limit}")
    return text


def nested_too_deeply(value: Any) -> bool:
    level = [value]
    for _ in range(_DEEPEST):
        level = [inner for outer in level for inner in _within(outer) if isinstance(inner, dict | list | tuple)]
        if not level:
            return False
    return True


def _within(outer: Any) -> Iterable[Any]:
    if isinstance(outer, dict):
        return outer.values()
    return outer if isinstance(outer, list | tuple) else ()


def checked_text(field: str, value: object, longest: int = 200) -> None:
    if not isinstance(value, str) or len(value) > longest or not value.isprintable():
        raise InvalidField(field, f"give a text of at most {longest} printable characters")


def _one_of(field: str, value: object, known: tuple[str, ...]) -> None:
    if not isinstance(value, str) or value not in known:
        raise InvalidField(field, f"{value!r} is unknown; there are {', '.join(sorted(known))}")


def _texts(action: ScheduledAction) -> None:
    for field in ("name", "event", "cron_expression", "timezone"):
        value = getattr(action, field)
        if value is not None or field not in ("event", "cron_expression"):
            checked_text(field, value)
    if not isinstance(action.action_config, dict):
        raise InvalidField("action_config", "give an object")
    checked_json("action_config", action.action_config)


def _numbers(action: ScheduledAction) -> None:
    for field, least, most in (
        ("misfire_limit", 1, _MOST_MISSED),
        ("max_retries", 0, _MAX_INT32),
        ("max_executions", 1, _MAX_INT32),
    ):
        value = getattr(action, field)
        if value is None and field == "max_executions":
            continue
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise InvalidField(field, f"{value!r} is not a whole number from {least} to {most}")
    for field in ("misfire_grace_seconds", "jitter_seconds", "retry_delay_seconds"):
        _seconds(action, field, 0.0)
    if action.timeout_seconds is not None:
        _seconds(action, "timeout_seconds", 0.001)
    if not isinstance(action.allow_concurrent, bool):
        raise InvalidField("allow_concurrent", "give true or false")


def _seconds(action: ScheduledAction, field: str, least: float) -> None:
    value = getattr(action, field)
    number = isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
    if not number or not least <= value <= _LONGEST:
        raise InvalidField(field, f"{value!r} is not a number of seconds from {least:g} to {_LONGEST:.0f}")


def _times(action: ScheduledAction) -> None:
    try:
        ZoneInfo(action.timezone)
    except (ValueError, OSError):  # not found is a KeyError below; a folder's name and a bad one are these
        raise InvalidField("timezone", f"{action.timezone!r} is not a time zone") from None
    except KeyError:
        raise InvalidField("timezone", f"{action.timezone!r} is not a known time zone, such as Europe/Berlin") from None
    for field in ("run_at", "start_at", "end_at"):
        value = getattr(action, field)
        if value is not None and (not isinstance(value, datetime) or value.tzinfo is None):
            raise InvalidField(field, "give a time with its offset from UTC")
        if value is not None and not _EARLIEST <= value <= _LATEST:
            raise InvalidField(field, f"is not between the years {_EARLIEST.year} and {_LATEST.year}")
    if action.start_at and action.end_at and action.end_at < action.start_at:
        raise InvalidField("end_at", "is before start_at")


def _schedule(action: ScheduledAction, now: datetime) -> None:
    match action.schedule_type:
        case "cron":
            _cron(action.cron_expression, now)
        case "interval":
            if action.interval_seconds is None:
                raise InvalidField("interval_seconds", "an interval needs it")
            _seconds(action, "interval_seconds", MIN_INTERVAL)
            if action.jitter_seconds > action.interval_seconds:
                raise InvalidField("jitter_seconds", "is longer than the interval")
        case "once":
            if action.run_at is None:
                raise InvalidField("run_at", "a once needs its time")
            if action.run_at <= now and action.misfire in (None, "skip") and action.status == "active":
                raise InvalidField("run_at", "has passed; give misfire='run_once' to have it run at once")
    belongs = {"cron_expression": "cron", "interval_seconds": "interval", "run_at": "once"}
    for field, schedule_type in belongs.items():
        if getattr(action, field) is not None and schedule_type != action.schedule_type:
            raise InvalidField(field, f"is for schedule_type {schedule_type}, and this is {action.schedule_type}")
    timed = action.schedule_type in ("cron", "interval")
    if timed and first_occurrence(replace(action, created_at=action.created_at or now), now) is None:
        raise InvalidField("end_at", "leaves no occurrence")


def _cron(expression: str | None, now: datetime) -> None:
    if not expression:
        raise InvalidField("cron_expression", "a cron schedule needs it")
    try:
        found = next(CronSim(expression, now), None)
    except CronSimError as error:
        raise InvalidField("cron_expression", f"{expression!r}: {error}") from None
    if found is None:
        raise InvalidField("cron_expression", f"{expression!r} never comes")
