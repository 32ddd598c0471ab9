"""Every occurrence once, on any number of instances: real processes on a real PostgreSQL."""

import glob
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import fields
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import psycopg
import pytest
from actions_for_tests import add, ask, trigger, unfinished, wait_for_state
from instances import Effects, Instance, wait_until

from holdfast.scheduler import RunState, ScheduledAction

Start = Callable[..., Instance]


def wait_for_each(effects: Effects, actions: int, times: int, by: int = 1) -> None:
    """Until each of so many actions has run so many times, by at least so many instances together."""

    def come() -> bool:
        ran = effects.all("ran")
        often = Counter(effect["action"] for effect in ran)
        return len(often) == actions and min(often.values()) >= times and len({effect["pid"] for effect in ran}) >= by

    wait_until(come, f"each of {actions} to run {times} times; there are {effects.all()}")


def each_once_and_none_left_out(effects: Effects, actions: int, least: int) -> None:
    ran = Counter((effect["action"], effect["for"]) for effect in effects.all("ran"))
    assert set(ran.values()) == {1}, "an occurrence ran twice"
    for action in {action for action, _ in ran}:
        moments = sorted(datetime.fromisoformat(moment) for number, moment in ran if number == action)
        assert len(moments) >= least
        assert {later - earlier for earlier, later in pairwise(moments)} == {timedelta(seconds=1)}, "one was left out"
    assert len({action for action, _ in ran}) == actions


@pytest.mark.parametrize(
    "polls", [[60.0] * 5, [0.05, 0.11, 0.23, 0.37, 0.7]], ids=["simultaneous ticks", "staggered polls"]
)
def test_every_occurrence_is_run_once_by_five_processes(
    url: str, instance: Start, effects: Effects, polls: list[float], db: psycopg.Connection[Any]
) -> None:
    # All due at the same moment. run_all: on a machine that is busy for a second, an occurrence is not to be missed.
    # Concurrent: so that nothing but the claim keeps an occurrence from being run twice.
    start = datetime.now().astimezone() + timedelta(seconds=1)
    for _ in range(20):
        add(
            url, effects, "record", schedule_type="interval", interval_seconds=1, start_at=start, misfire="run_all",
            misfire_limit=100, allow_concurrent=True,
        )  # fmt: skip
    for poll in polls:
        instance(poll_interval=poll)
    wait_for_each(effects, actions=20, times=5, by=2)
    db.execute("update holdfast.scheduled_action set status = 'paused'")
    wait_until(lambda: not unfinished(db), "runs to end")
    each_once_and_none_left_out(effects, actions=20, least=5)


def test_restarts_neither_repeat_nor_lose_an_occurrence(url: str, instance: Start, effects: Effects) -> None:
    for _ in range(4):
        add(url, effects, "record", schedule_type="interval", interval_seconds=1, misfire="run_all", misfire_limit=100)
    for round_number in range(1, 4):
        first, second = instance(), instance()
        wait_for_each(effects, actions=4, times=round_number + 1)
        first.signal(15)
        second.signal(15)
        assert [first.wait(), second.wait()] == [0, 0]
    each_once_and_none_left_out(effects, actions=4, least=4)


@pytest.mark.skipif(not glob.glob("/usr/lib/*/faketime/libfaketime.so.1"), reason="needs libfaketime")
def test_an_instance_whose_clock_is_an_hour_off_runs_nothing_early_or_twice(
    url: str, instance: Start, effects: Effects, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(5):
        add(url, effects, "record", schedule_type="interval", interval_seconds=1, misfire="run_all", misfire_limit=100)
    monkeypatch.setenv("LD_PRELOAD", glob.glob("/usr/lib/*/faketime/libfaketime.so.1")[0])
    monkeypatch.setenv("FAKETIME_DONT_FAKE_MONOTONIC", "1")
    for offset in ("+1h", "-1h"):
        monkeypatch.setenv("FAKETIME", offset)
        instance()
    monkeypatch.delenv("LD_PRELOAD")
    instance()
    wait_for_each(effects, actions=5, times=3, by=2)  # so one whose clock is off is among them
    wrong = [effect for effect in effects.all("ran") if abs(effect["at"] - time.time()) > 1800]
    assert wrong, "the clocks of two instances are off"
    each_once_and_none_left_out(effects, actions=5, least=3)


def test_five_processes_that_execute_one_occurrence_at_the_same_moment_run_it_once(
    url: str, instance: Start, effects: Effects, db: psycopg.Connection[Any]
) -> None:
    instances = [instance(started=False) for _ in range(5)]
    for round_number in range(1, 11):
        soon = datetime.now().astimezone() + timedelta(milliseconds=1)
        action = add(url, effects, "record", schedule_type="once", run_at=soon, misfire="run_once")
        moment = time.time() + 0.1
        for one in instances:
            one.tell(f"execute {action} {moment}")
        assert [one.answer() for one in instances] == [[]] * 5  # nobody still thinks that it runs
        assert len(effects.all("ran")) == round_number
        count = db.execute("select execution_count as n from holdfast.scheduled_action where id = %s", (action,))
        assert count.fetchone() == {"n": 1}


def test_an_action_whose_lock_somebody_holds_is_passed_over_until_it_is_free(
    url: str, instance: Start, effects: Effects
) -> None:
    soon = datetime.now().astimezone() + timedelta(milliseconds=10)
    locked = add(url, effects, "record", schedule_type="once", run_at=soon, misfire="run_once")
    free = add(url, effects, "record", schedule_type="once", run_at=soon, misfire="run_once")
    with psycopg.connect(url) as other:
        other.execute("select pg_advisory_xact_lock(2, %s::int4)", (locked,))
        instance()
        effects.wait_for("ran")
        later = add(url, effects, "record")
        trigger(url, later)  # that it is run shows that the instance has looked again
        assert [effect["action"] for effect in effects.wait_for("ran", 2)] == [free, later]
    assert [effect["action"] for effect in effects.wait_for("ran", 3)] == [free, later, locked]


def test_what_was_created_elsewhere_starts_without_waiting_for_a_poll(
    url: str, instance: Start, effects: Effects, db: psycopg.Connection[Any]
) -> None:
    instance(poll_interval=60)
    asleep = """select from pg_stat_activity heard, pg_stat_activity looked
        where heard.datname = current_database() and heard.query like 'listen %'
            and looked.datname = current_database() and looked.query_start > heard.query_start
            and looked.state = 'idle'"""
    wait_until(lambda: db.execute(asleep).fetchall(), "it to have looked after it had begun to listen")
    begun = time.monotonic()
    add(url, effects, "record", schedule_type="interval", interval_seconds=1)
    effects.wait_for("ran")
    assert time.monotonic() - begun < 10


def test_what_was_paused_elsewhere_is_not_run_and_not_overwritten(
    url: str, instance: Start, effects: Effects, db: psycopg.Connection[Any]
) -> None:
    action = add(url, effects, "record", schedule_type="interval", interval_seconds=1)
    instance(poll_interval=60), instance(poll_interval=60)
    effects.wait_for("ran", 2)
    ask(url, lambda scheduler: scheduler.pause(action))
    wait_until(lambda: not unfinished(db), "runs to end")

    def runs_of(number: int) -> int:
        return [effect["action"] for effect in effects.all("ran")].count(number)

    ran = runs_of(action)
    other = add(url, effects, "record", schedule_type="interval", interval_seconds=1)
    wait_until(lambda: runs_of(other) >= 3, "another one to be due several times")
    assert runs_of(action) == ran
    assert ask(url, lambda scheduler: scheduler.get(action)).status == "paused"
    ask(url, lambda scheduler: scheduler.resume(action))
    wait_until(lambda: runs_of(action) > ran, "it to go on")


def test_an_action_without_concurrency_is_never_run_twice_at_once_by_triggers_schedule_or_event(
    url: str, instance: Start, effects: Effects, db: psycopg.Connection[Any]
) -> None:
    action = add(url, effects, "hold", schedule_type="interval", interval_seconds=1, event="go")
    instances = [instance() for _ in range(4)]
    effects.wait_for("began")  # by its schedule
    moment = time.time() + 0.2
    for one in instances:
        one.tell(f"trigger {action} {moment}")
    assert [one.answer() for one in instances] == ["skipped"] * 4
    (fired,) = ask(url, lambda scheduler: scheduler.fire("go"))
    assert fired.state == RunState.SKIPPED
    skipped = "select from holdfast.scheduled_run where state = 'skipped' and trigger = 'schedule'"
    wait_until(lambda: db.execute(skipped).fetchall(), "an occurrence to be skipped")
    assert len(effects.all("began")) == 1
    effects.open_gate()


def test_of_triggers_at_the_same_moment_one_runs(url: str, instance: Start, effects: Effects) -> None:
    action = add(url, effects, "hold")
    instances = [instance() for _ in range(5)]
    moment = time.time() + 0.2
    for one in instances:
        one.tell(f"trigger {action} {moment}")
    assert Counter(one.answer() for one in instances) == {"pending": 1, "skipped": 4}
    effects.wait_for("began")
    effects.open_gate()
    assert len(effects.wait_for("ended")) == 1


def test_an_action_with_concurrency_is_run_at_once_by_several(url: str, instance: Start, effects: Effects) -> None:
    action = add(url, effects, "hold", allow_concurrent=True)
    instance(), instance()
    for _ in range(3):
        trigger(url, action)
    assert len(effects.wait_for("began", 3)) == 3
    effects.open_gate()
    effects.wait_for("ended", 3)


def test_an_event_carries_its_payload_to_every_action_that_waits_for_it(
    url: str, instance: Start, effects: Effects
) -> None:
    for _ in range(2):
        add(url, effects, "record", event="deployed")
    add(url, effects, "record", event="something else")
    instance()
    ask(url, lambda scheduler: scheduler.fire("deployed", {"version": 7}))
    assert [effect["payload"] for effect in effects.wait_for("ran", 2)] == [{"version": 7}] * 2
    assert len(effects.all("ran")) == 2


def test_events_fired_in_several_processes_are_run_once_each_by_any_instance(
    url: str, instance: Start, effects: Effects, db: psycopg.Connection[Any]
) -> None:
    several = add(url, effects, "record", event="go", allow_concurrent=True)
    bounded = add(url, effects, "record", event="go", allow_concurrent=True, max_executions=3)
    instances = [instance() for _ in range(5)]
    moment = time.time() + 0.2
    for one in instances:
        one.tell(f"fire go {moment}")
    fired = [one.answer() for one in instances]
    assert Counter(action for answer in fired for action in answer) == {several: 5, bounded: 3}
    effects.wait_for("ran", 8)
    wait_until(lambda: not unfinished(db), "runs to end")
    assert Counter(effect["action"] for effect in effects.all("ran")) == {several: 5, bounded: 3}
    assert len({effect["run"] for effect in effects.all("ran")}) == 8
    assert ask(url, lambda scheduler: scheduler.get(bounded)).status == "finished"


def test_of_triggers_at_the_same_moment_as_many_run_as_may(
    url: str, instance: Start, effects: Effects, db: psycopg.Connection[Any]
) -> None:
    action = add(url, effects, "record", allow_concurrent=True, max_executions=3)
    instances = [instance() for _ in range(5)]
    moment = time.time() + 0.2
    for one in instances:
        one.tell(f"trigger {action} {moment}")
    assert Counter(one.answer() for one in instances) == {"pending": 3, "NotNow": 2}
    effects.wait_for("ran", 3)
    wait_until(lambda: not unfinished(db), "runs to end")
    assert len(effects.all("ran")) == 3


def test_a_schedule_that_is_changed_while_its_run_is_under_way_goes_on_by_the_new_one(
    url: str, instance: Start, effects: Effects, db: psycopg.Connection[Any]
) -> None:
    action = add(url, effects, "hold", schedule_type="interval", interval_seconds=1)
    instance(poll_interval=60)
    began = effects.wait_for("began")[0]
    tomorrow = datetime.now().astimezone() + timedelta(days=1)
    changes = {"schedule_type": "once", "interval_seconds": None, "run_at": tomorrow}
    ask(url, lambda scheduler: scheduler.update(action, **changes))
    effects.open_gate()
    wait_for_state(db, began["run"], "completed")
    after = ask(url, lambda scheduler: scheduler.get(action))
    assert (after.status, after.next_run_at, after.execution_count) == ("active", tomorrow, 1)


def test_deployments_with_different_namespaces_in_one_database_do_not_touch_each_others_actions(
    url: str, instance: Start, effects: Effects
) -> None:
    here = add(url, effects, "record", schedule_type="interval", interval_seconds=1)
    there = add(url, effects, "record", schedule_type="interval", interval_seconds=1, namespace=1234)
    ours, theirs = instance(), instance(namespace=1234)
    wait_until(lambda: {e["action"] for e in effects.all("ran")} == {here, there}, "both to run")
    effects.wait_for("ran", 6)
    assert {(effect["action"], effect["pid"]) for effect in effects.all("ran")} == {
        (here, ours.pid),
        (there, theirs.pid),
    }
    assert [action.id for action in ask(url, lambda scheduler: scheduler.actions())] == [here]


def test_retries_are_bounded_across_instances(
    url: str, instance: Start, effects: Effects, db: psycopg.Connection[Any]
) -> None:
    action = add(url, effects, "fail", max_retries=3, retry_delay_seconds=0.1)
    for _ in range(3):
        instance(poll_interval=0.05)
    run = trigger(url, action)
    row = wait_for_state(db, run, "failed")
    assert (row["attempt"], row["error"]) == (4, "RuntimeError: as it was told")
    assert [effect["attempt"] for effect in effects.all("failed")] == [1, 2, 3, 4]
    assert len({effect["key"] for effect in effects.all("failed")}) == 1
    effects_of_another = trigger(url, add(url, effects, "record"))
    wait_for_state(db, effects_of_another, "completed")  # they have looked again
    assert len(effects.all("failed")) == 4 and unfinished(db) == 0


def test_an_unknown_action_type_is_a_clear_failure_and_no_hot_loop(
    url: str, instance: Start, effects: Effects, db: psycopg.Connection[Any]
) -> None:
    action = add(url, effects, "record", max_retries=5)
    db.execute("update holdfast.scheduled_action set action_type = 'nobody knows' where id = %s", (action,))
    instance()
    row = wait_for_state(db, trigger(url, action), "failed")
    assert "nobody knows" in row["error"] and row["attempt"] == 1


def test_one_action_with_a_broken_schedule_does_not_stop_the_others(
    url: str, instance: Start, effects: Effects, db: psycopg.Connection[Any]
) -> None:
    broken = add(url, effects, "record", schedule_type="cron", cron_expression="0 0 1 1 *")
    db.execute(
        "update holdfast.scheduled_action set cron_expression = 'nonsense', next_run_at = now() - interval '1 h'"
    )
    whole = add(url, effects, "record", schedule_type="interval", interval_seconds=1)
    instance()
    assert {effect["action"] for effect in effects.wait_for("ran", 2)} == {whole}
    assert ask(url, lambda scheduler: scheduler.get(broken)).status == "paused"
    (run,) = ask(url, lambda scheduler: scheduler.runs(broken))
    assert "cannot be read" in (run.error or "")


def test_an_idle_look_is_answered_from_indexes_whatever_the_number_of_actions(
    url: str, effects: Effects, db: psycopg.Connection[Any]
) -> None:
    from holdfast.scheduler.postgres.store import STATEMENTS

    add(url, effects, "record", schedule_type="once", run_at=datetime.now().astimezone() + timedelta(days=1))
    db.execute(
        "insert into holdfast.scheduled_action select (jsonb_populate_record(a, jsonb_build_object('id', n))).* "
        "from holdfast.scheduled_action a, generate_series(1000, 20000) n; analyze holdfast.scheduled_action"
    )
    look = STATEMENTS["look"].text.replace(":namespace", "2")
    plan = "\n".join(row["QUERY PLAN"] for row in db.execute(f"explain {look}"))  # type: ignore[call-overload]
    assert "scheduled_action_due" in plan and "Seq Scan on scheduled_action" not in plan, plan


def test_the_models_are_the_tables(url: str) -> None:
    import sqlalchemy
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    from holdfast.scheduler.actions import ScheduledRun
    from holdfast.scheduler.postgres import tables

    engine = sqlalchemy.create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(url))
    ours = {"scheduled_action", "scheduled_run"}

    def is_ours(thing: Any, name: Any, kind: str, reflected: bool, compared: Any) -> bool:
        return kind == "column" or (kind == "table" and name in ours)

    with engine.connect() as connection:
        options = {"include_schemas": True, "include_object": is_ours}
        context = MigrationContext.configure(connection, opts=options)
        assert compare_metadata(context, tables.Base.metadata) == []
    engine.dispose()
    for record, table in ((ScheduledAction, tables.actions), (ScheduledRun, tables.runs)):
        assert {field.name for field in fields(record)} | {"namespace"} == set(table.c.keys())


def test_an_application_can_ask_in_a_session_of_its_own(url: str, effects: Effects) -> None:
    import asyncio

    from sqlalchemy import select
    from sqlalchemy.ext.asyncio import AsyncSession

    from holdfast.scheduler.postgres.database import database_of
    from holdfast.scheduler.postgres.tables import ActionRow, RunRow

    trigger(url, add(url, effects, "record", name="mine"))

    async def main() -> list[tuple[str, str, Any]]:
        database = database_of(url)
        async with AsyncSession(database.engine) as session:
            asked = select(ActionRow.name, RunRow.state, RunRow.payload).join(RunRow, RunRow.action_id == ActionRow.id)
            found = [tuple(row) for row in await session.execute(asked)]
        await database.close()
        return found

    assert asyncio.run(main()) == [("mine", "pending", None)]
