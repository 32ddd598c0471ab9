"""When things are to run, and what becomes of what could not: pure, with the time given."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.scheduler import InvalidField, ScheduledAction
from holdfast.scheduler.checks import checked
from holdfast.scheduler.planning import BUSY, Plan, plan_due, scheduled_anew
from holdfast.scheduler.schedules import first_occurrence, newest_occurrences, occurrence_after

NOON = datetime(2026, 6, 1, 12, 0, tzinfo=UTC)
TYPES = ("run_task",)


def cron(expression: str, zone: str = "UTC", **fields: Any) -> ScheduledAction:
    return ScheduledAction(
        action_type="run_task",
        schedule_type="cron",
        cron_expression=expression,
        timezone=zone,
        misfire="skip",
        **fields,
    )


def every(seconds: float, **fields: Any) -> ScheduledAction:
    fields = {"misfire": "skip", "created_at": NOON, **fields}
    return ScheduledAction(action_type="run_task", schedule_type="interval", interval_seconds=seconds, **fields)


def from_then_on(action: ScheduledAction, start: datetime, count: int) -> list[datetime]:
    moments = [first_occurrence(action, start)]
    while len(moments) < count and moments[-1] is not None:
        moments.append(occurrence_after(action, moments[-1]))
    return [moment for moment in moments if moment is not None]


def utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def test_cron_goes_by_its_time_zone() -> None:
    assert from_then_on(cron("30 9 * * *", "Asia/Kolkata"), NOON, 2) == [
        utc("2026-06-02T04:00"),
        utc("2026-06-03T04:00"),
    ]


def test_a_fixed_time_that_is_left_out_in_spring_happens_right_after_the_gap() -> None:
    action = cron("30 2 * * *", "Europe/Berlin")
    assert from_then_on(action, utc("2026-03-28T12:00"), 2) == [utc("2026-03-29T01:00"), utc("2026-03-30T00:30")]


def test_a_fixed_time_that_comes_twice_in_autumn_happens_once() -> None:
    action = cron("30 2 * * *", "Europe/Berlin")
    found = from_then_on(action, utc("2026-10-24T12:00"), 2)
    assert found == [utc("2026-10-25T00:30"), utc("2026-10-26T01:30")]
    # Also for an instance that looks for the first time between the two, or just before the second.
    for moment in ("2026-10-25T00:45", "2026-10-25T01:10", "2026-10-25T01:30"):
        assert first_occurrence(action, utc(moment)) == utc("2026-10-26T01:30")


def test_a_fixed_time_with_seconds_keeps_to_the_same_rules() -> None:
    action = cron("15,45 30 2 * * *", "Europe/Berlin")
    assert from_then_on(action, utc("2026-03-28T12:00"), 3) == [
        utc("2026-03-29T01:00:15"), utc("2026-03-29T01:00:45"), utc("2026-03-30T00:30:15"),
    ]  # fmt: skip
    assert from_then_on(action, utc("2026-10-25T00:30:20"), 2) == [
        utc("2026-10-25T00:30:45"), utc("2026-10-26T01:30:15")
    ]  # fmt: skip
    assert from_then_on(cron("*/20 * * * * *", "Europe/Berlin"), utc("2026-10-25T00:59:50"), 2) == [
        utc("2026-10-25T01:00:00"), utc("2026-10-25T01:00:20")
    ]  # fmt: skip


def test_a_range_of_fixed_times_happens_once_each_when_clocks_change() -> None:
    action = cron("0,30 1-3 * * *", "Europe/Berlin")
    spring = from_then_on(action, utc("2026-03-28T23:00"), 5)
    assert [moment.strftime("%d %H:%M") for moment in spring] == [
        "29 00:00",
        "29 00:30",
        "29 01:00",
        "29 01:30",
        "29 23:00",
    ]
    autumn = from_then_on(action, utc("2026-10-24T22:30"), 7)
    assert [moment.strftime("%d %H:%M") for moment in autumn] == [
        "24 23:00", "24 23:30", "25 00:00", "25 00:30", "25 02:00", "25 02:30", "26 00:00",
    ]  # fmt: skip


@pytest.mark.parametrize("start", ["2026-03-28T23:30", "2026-10-24T23:30"], ids=["spring", "autumn"])
def test_what_happens_every_half_hour_goes_on_doing_so_when_clocks_change(start: str) -> None:
    found = from_then_on(cron("*/30 * * * *", "Europe/Berlin"), utc(start), 8)
    assert found == [utc(start) + number * timedelta(minutes=30) for number in range(8)]


@example("*/7 3 * * *", "Australia/Lord_Howe", datetime(2029, 10, 2), 5)
@given(
    st.sampled_from(
        [
            "* * * * *",
            "*/7 3 * * *",
            "30 2 * * *",
            "0 0 1 * *",
            "15 10 * * 1-5",
            "0 12 29 2 *",
            "0,30 1-3 * * *",
            "0 0-5 * * *",
            "10,20 30 2 * * *",
            "*/40 59 * * * *",
        ]
    ),
    st.sampled_from(["UTC", "Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Asia/Kathmandu"]),
    st.datetimes(datetime(2024, 1, 1), datetime(2030, 1, 1)),
    st.integers(1, 5),
)
def test_the_newest_occurrences_are_those_that_counting_forwards_finds(
    expression: str, zone: str, start: datetime, count: int
) -> None:
    action = cron(expression, zone)
    oldest = first_occurrence(action, start.replace(tzinfo=UTC))
    assert oldest is not None
    forwards = from_then_on(action, oldest, 40)
    now = forwards[-1] + timedelta(seconds=1)
    assert newest_occurrences(action, oldest, now, count) == forwards[-count:]


def test_intervals_do_not_drift() -> None:
    action = every(10)
    assert from_then_on(action, NOON + timedelta(days=100, seconds=3), 2) == [
        NOON + timedelta(days=100, seconds=10),
        NOON + timedelta(days=100, seconds=20),
    ]
    assert first_occurrence(every(10, start_at=NOON + timedelta(hours=1)), NOON) == NOON + timedelta(hours=1)


def test_nothing_is_after_the_end() -> None:
    action = every(10, end_at=NOON + timedelta(seconds=25))
    assert len(from_then_on(action, NOON, 100)) == 2
    assert scheduled_anew(action, NOON + timedelta(minutes=1)).status == "finished"


def due(action: ScheduledAction, occurrence: datetime) -> ScheduledAction:
    return replace(action, next_occurrence=occurrence, next_run_at=occurrence)


def plan(action: ScheduledAction, late: float, *, busy: bool = False) -> Plan:
    """Its first occurrence was at noon and ten seconds; it is looked at ``late`` seconds after that."""
    first = NOON + timedelta(seconds=10)
    return plan_due(due(action, first), first + timedelta(seconds=late), busy=busy, chance=lambda: 0.5)


def at(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def test_an_occurrence_in_time_is_started_and_the_next_one_awaited() -> None:
    made = plan(every(10), 0.2)
    assert (made.start, made.skipped) == (at(10), [])
    assert (made.after.next_occurrence, made.after.execution_count) == (at(20), 1)


def test_missed_occurrences_are_skipped_and_the_newest_in_time_is_started() -> None:
    made = plan(every(10), 35)
    assert made.start == at(40) and made.after.next_occurrence == at(50)
    assert [skip.scheduled_for for skip in made.skipped] == [at(30)] and "since" in made.skipped[0].reason


def test_skip_starts_nothing_that_is_past_its_grace() -> None:
    made = plan(every(3600, misfire_grace_seconds=60), 61)
    assert made.start is None and made.after.next_occurrence == at(3600) and made.after.execution_count == 0
    assert [skip.scheduled_for for skip in made.skipped] == [at(10)]


def test_run_once_starts_the_newest_however_late() -> None:
    made = plan(every(10, misfire="run_once", misfire_grace_seconds=1), 1000)
    assert made.start == at(1010) and made.after.next_occurrence == at(1020)
    assert plan(every(3600, misfire="run_once", misfire_grace_seconds=1), 1000).start == at(10)


def test_run_all_starts_the_oldest_of_as_many_as_its_limit_says_one_after_another() -> None:
    action, now = due(every(10, misfire="run_all", misfire_limit=3), at(10)), at(1000)
    started = []
    while action.next_run_at is not None and action.next_run_at <= now:
        made = plan_due(action, now, busy=False)
        started.append(made.start)
        action = made.after
    assert started == [at(980), at(990), at(1000)]


@pytest.mark.parametrize("action", [cron("0 0 1 1 *"), every(3 * 366 * 86400.0)], ids=["cron", "interval"])
def test_run_all_looks_no_further_back_than_what_was_missed(action: ScheduledAction) -> None:
    first = occurrence_after(action, NOON)
    assert first is not None
    second = occurrence_after(action, first)
    assert second is not None
    action = replace(due(action, first), misfire="run_all", misfire_limit=1000)
    made = plan_due(action, second + timedelta(seconds=1), busy=False)
    assert (made.start, made.skipped, made.after.next_occurrence) == (first, [], second)


def test_a_busy_action_skips_its_occurrence_and_says_so() -> None:
    made = plan(every(10), 0, busy=True)
    assert made.start is None and made.skipped == [(at(10), BUSY)] and made.after.next_occurrence == at(20)


def test_a_busy_action_that_is_to_run_all_keeps_its_occurrence_for_later() -> None:
    made = plan(every(10, misfire="run_all"), 0, busy=True)
    assert made.start is None and made.skipped == [] and made.after.next_occurrence == at(10)
    assert made.after.next_run_at is not None and made.after.next_run_at > at(10), "and does not spin"


def test_a_once_runs_though_its_time_has_just_passed_and_then_is_finished() -> None:
    action = ScheduledAction(action_type="run_task", schedule_type="once", run_at=at(10), misfire="skip")
    made = plan(action, 3)
    assert made.start == at(10) and made.after.status == "finished" and made.after.next_run_at is None


def test_the_last_execution_finishes_the_action() -> None:
    made = plan(every(10, max_executions=3, execution_count=2), 0)
    assert made.start == at(10) and made.after.status == "finished" and made.after.next_run_at is None


def test_jitter_moves_when_it_is_due_and_not_which_occurrence_it_is() -> None:
    made = plan(every(10, jitter_seconds=4), 0)
    assert (made.after.next_occurrence, made.after.next_run_at) == (at(20), at(22))


def test_jitter_is_not_lateness() -> None:
    """An occurrence put off by nearly the whole interval is not overtaken by the next, which is put off as well."""
    for misfire in ("skip", "run_once", "run_all"):
        action = replace(due(every(10, jitter_seconds=10, misfire=misfire), at(10)), next_run_at=at(19.5))
        made = plan_due(action, at(20.1), busy=False, chance=lambda: 1)
        assert (made.start, made.skipped) == (at(10), [])
        assert (made.after.next_occurrence, made.after.next_run_at) == (at(20), at(30))
    late = replace(due(every(3600, jitter_seconds=600), at(10)), next_run_at=at(500))
    assert plan_due(late, at(559), busy=False).start == at(10)
    assert plan_due(late, at(561), busy=False).start is None, "60 s after it was due"


def test_run_all_keeps_to_its_limit_though_it_was_put_off_while_busy() -> None:
    action = replace(due(every(10, misfire="run_all", misfire_limit=2), at(10)), next_run_at=at(99))
    assert plan_due(action, at(100), busy=False).start == at(90)


@pytest.mark.parametrize(
    ("field", "fields"),
    [
        ("cron_expression", {"schedule_type": "cron"}),
        ("cron_expression", {"schedule_type": "cron", "cron_expression": "61 * * * *"}),
        ("cron_expression", {"schedule_type": "cron", "cron_expression": "* * *"}),
        ("cron_expression", {"schedule_type": "cron", "cron_expression": "0 0 31 2 *"}),
        ("cron_expression", {"cron_expression": "* * * * *"}),
        ("timezone", {"timezone": "Europe/Nowhere"}),
        ("timezone", {"timezone": "../../etc/passwd"}),
        ("timezone", {"timezone": "Europe"}),
        ("interval_seconds", {"schedule_type": "interval"}),
        ("interval_seconds", {"schedule_type": "interval", "interval_seconds": 0.5}),
        ("interval_seconds", {"schedule_type": "interval", "interval_seconds": float("nan")}),
        ("interval_seconds", {"schedule_type": "interval", "interval_seconds": True}),
        ("jitter_seconds", {"schedule_type": "interval", "interval_seconds": 5, "jitter_seconds": 6}),
        ("run_at", {"schedule_type": "once"}),
        ("run_at", {"schedule_type": "once", "run_at": NOON - timedelta(seconds=1)}),
        ("run_at", {"schedule_type": "once", "run_at": datetime(2030, 1, 1)}),
        ("action_type", {"action_type": "unheard_of"}),
        ("schedule_type", {"schedule_type": "sometimes"}),
        ("misfire", {"misfire": "maybe"}),
        ("misfire_limit", {"misfire_limit": 0}),
        ("misfire_limit", {"misfire_limit": 1001}),
        ("run_at", {"schedule_type": "once", "run_at": datetime(9999, 12, 31, 23, 59, tzinfo=UTC)}),
        ("start_at", {"start_at": datetime(1, 1, 1, tzinfo=timezone(timedelta(hours=14)))}),
        ("end_at", {"end_at": datetime(9999, 12, 31, tzinfo=UTC)}),
        ("recovery", {"recovery": "exactly_once"}),
        ("max_retries", {"max_retries": -1}),
        ("max_executions", {"max_executions": 0}),
        ("timeout_seconds", {"timeout_seconds": 0}),
        ("retry_delay_seconds", {"retry_delay_seconds": -1}),
        ("end_at", {"start_at": NOON, "end_at": NOON - timedelta(days=1)}),
        ("end_at", {"schedule_type": "interval", "interval_seconds": 60, "end_at": NOON + timedelta(seconds=1)}),
        ("action_config", {"action_config": {"a": float("inf")}}),
        ("action_config", {"action_config": {"a": "\x00"}}),
        ("action_config", {"action_config": {"a": "\ud800"}}),
        ("action_config", {"action_config": {"a": "x" * 300_000}}),
        ("name", {"name": "a\nb"}),
        ("event", {"event": "x" * 300}),
        ("allow_concurrent", {"allow_concurrent": "yes"}),
    ],
)
def test_a_field_that_cannot_be_used_is_named(field: str, fields: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=rf"^{field}: ") as caught:
        checked(ScheduledAction(**{"action_type": "run_task", **fields}), NOON, TYPES)
    assert isinstance(caught.value, InvalidField) and caught.value.field == field


def test_a_once_in_the_past_is_taken_with_a_misfire_policy() -> None:
    past = ScheduledAction(action_type="run_task", schedule_type="once", run_at=NOON, misfire="run_once")
    assert scheduled_anew(checked(past, NOON, TYPES), NOON).next_run_at == NOON
