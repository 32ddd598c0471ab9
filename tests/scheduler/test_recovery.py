"""Instances that die, stand still, or lose their database: nothing runs twice, and nothing is left unsettled."""

import signal
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from actions_for_tests import (
    add,
    advisory_locks,
    ask,
    end_lease,
    run_row,
    state_of,
    trigger,
    unfinished,
    wait_for_state,
)
from instances import Effects, Instance, wait_until

sys.path.append(str(Path(__file__).parent.parent / "postgres"))
from pg_proxy import Proxy, proxy

Start = Callable[..., Instance]

LEASE = 4.0
"""So long that it is kept, and what was claimed is begun, on a machine that stands still for a second or two."""


@pytest.fixture
def network(url: str) -> Any:
    with proxy(url) as between:
        yield between


def test_a_killed_instance_is_not_made_up_for_if_a_run_may_begin_once_only(
    url: str, instance: Start, effects: Effects, db: psycopg.Connection[Any]
) -> None:
    action = add(url, effects, "hold", recovery="at_most_once")
    killed = instance(lease=LEASE)
    run = trigger(url, action)
    effects.wait_for("began")
    killed.kill()
    instance(lease=LEASE), instance(lease=LEASE)
    row = wait_for_state(db, run, "failed")
    assert "not run again: at most once" in row["error"] and row["attempt"] == 1
    assert len(effects.all("began")) == 1
    effects.open_gate()
    wait_for_state(db, trigger(url, action), "completed")  # the next run is not held up by it


def test_a_killed_instance_is_made_up_for_by_one_other_if_a_run_is_to_be_done_at_least_once(
    url: str, instance: Start, effects: Effects, db: psycopg.Connection[Any]
) -> None:
    action = add(url, effects, "hold", recovery="at_least_once")
    killed = instance(lease=LEASE)
    run = trigger(url, action)
    effects.wait_for("began")
    for _ in range(3):
        instance(lease=LEASE)
    assert len(effects.all("began")) == 1, "it is renewed as long as its instance lives"
    killed.kill()
    first, second = effects.wait_for("began", 2)
    assert second["pid"] != first["pid"] and (first["attempt"], second["attempt"]) == (1, 2)
    assert first["key"] == second["key"]
    effects.open_gate()
    assert wait_for_state(db, run, "completed")["result"] == {"pid": second["pid"]}
    assert len(effects.all("began")) == 2


def test_a_run_that_kills_its_instances_is_given_up(
    url: str, instance: Start, effects: Effects, db: psycopg.Connection[Any]
) -> None:
    action = add(url, effects, "die", recovery="at_least_once")
    run = trigger(url, action)
    for number in range(1, 7):
        doomed = instance()
        assert doomed.wait() == -signal.SIGKILL
        assert len(effects.all("died")) == number
        end_lease(db, run)
    instance()
    assert "so did others before it" in wait_for_state(db, run, "failed")["error"]
    assert len(effects.all("died")) == 6


@pytest.mark.parametrize("handler", ["hold", "hold_in_thread"])
def test_an_instance_that_stood_still_past_its_lease_cannot_end_a_run_that_was_given_to_another(
    url: str, instance: Start, effects: Effects, db: psycopg.Connection[Any], handler: str
) -> None:
    action = add(url, effects, handler, recovery="at_least_once")
    paused = instance(lease=LEASE)
    run = trigger(url, action)
    effects.wait_for("began")
    paused.signal(signal.SIGSTOP)
    other = instance(lease=60)
    effects.wait_for("began", 2)
    paused.signal(signal.SIGCONT)
    if handler == "hold":
        assert effects.wait_for("lost")[0]["pid"] == paused.pid  # it is told, before it could do any more
        effects.open_gate()
    else:
        # It cannot be stopped, and ends as if nothing had been, and before the other.
        other.signal(signal.SIGSTOP)
        effects.open_gate()
        wait_until(lambda: paused.ask("health")["refused"] == 1, "its late ending to be refused")
        assert run_row(db, run)["attempt"] == 2 and state_of(db, run) == "running"
        other.signal(signal.SIGCONT)
    row = wait_for_state(db, run, "completed")
    assert row["result"] == {"pid": other.pid} and row["attempt"] == 2
    assert paused.ask("health")["lost"] == 1


def wait_for_renewal(db: psycopg.Connection[Any], run: int) -> None:
    """Until the first lease has ended, and the run still goes on."""
    first = run_row(db, run)["lease_until"]
    wait_until(lambda: database_time(db) > first, "the first lease to end")
    assert run_row(db, run)["lease_until"] > first and run_row(db, run)["attempt"] == 1


def database_time(db: psycopg.Connection[Any]) -> Any:
    row = db.execute("select clock_timestamp() as now").fetchone()
    assert row is not None
    return row["now"]


def test_a_long_run_keeps_its_lease(url: str, instance: Start, effects: Effects, db: psycopg.Connection[Any]) -> None:
    action = add(url, effects, "hold", recovery="at_least_once")
    instance(lease=LEASE), instance(lease=LEASE)
    run = trigger(url, action)
    effects.wait_for("began")
    wait_for_renewal(db, run)
    effects.open_gate()
    assert wait_for_state(db, run, "completed")["attempt"] == 1


def test_a_sync_task_that_timed_out_keeps_its_lease_until_its_thread_ends(
    url: str, instance: Start, effects: Effects, db: psycopg.Connection[Any]
) -> None:
    action = add(url, effects, "hold_in_thread", timeout_seconds=0.2, recovery="at_least_once")
    instance(lease=LEASE), instance(lease=LEASE)
    run = trigger(url, action)
    effects.wait_for("began")
    wait_for_renewal(db, run)  # well past its timeout
    assert ask(url, lambda scheduler: scheduler.trigger(action)).state == "skipped"  # nobody else may begin
    effects.open_gate()
    row = wait_for_state(db, run, "timeout")
    assert row["attempt"] == 1 and "timeout of 0.2 s" in row["error"]
    assert len(effects.all("began")) == 1


def test_an_async_task_is_cancelled_at_its_timeout_and_retried(
    url: str, instance: Start, effects: Effects, db: psycopg.Connection[Any]
) -> None:
    action = add(url, effects, "hold", timeout_seconds=0.2, max_retries=1, retry_delay_seconds=0)
    instance()
    row = wait_for_state(db, trigger(url, action), "timeout")
    assert row["attempt"] == 2 and row["duration_seconds"] >= 0.2
    assert len(effects.all("cancelled")) == 2


def test_an_instance_that_is_cut_off_runs_nothing_says_so_and_goes_on_afterwards(
    url: str, instance: Start, effects: Effects, network: Proxy, db: psycopg.Connection[Any]
) -> None:
    action = add(url, effects, "record", schedule_type="interval", interval_seconds=1)
    cut_off = instance(at=network.url, poll_interval=0.2)
    effects.wait_for("ran", 2)
    network.freeze()
    network.cut()
    wait_until(lambda: not cut_off.ask("health")["healthy"], "it to notice")
    ran = len(effects.all("ran"))
    due = ask(url, lambda scheduler: scheduler.get(action)).next_run_at
    assert due is not None
    wait_until(lambda: database_time(db) > due + timedelta(seconds=1), "two more to be due")
    assert len(effects.all("ran")) == ran
    health = cut_off.ask("health")
    assert health["ready"] and health["database_errors"] > 0
    network.thaw()
    network.cut()
    effects.wait_for("ran", ran + 2)
    wait_until(lambda: cut_off.ask("health")["healthy"], "it to be well again")


def test_a_run_whose_instance_is_cut_off_stops_before_another_begins(
    url: str, instance: Start, effects: Effects, network: Proxy, db: psycopg.Connection[Any]
) -> None:
    action = add(url, effects, "hold", recovery="at_least_once")
    cut_off = instance(at=network.url, lease=LEASE)
    run = trigger(url, action)
    effects.wait_for("began")
    network.freeze()
    other = instance(lease=60)
    first, second = effects.wait_for("began", 2)
    (lost,) = effects.wait_for("lost")
    assert (first["pid"], lost["pid"], second["pid"]) == (cut_off.pid, cut_off.pid, other.pid)
    assert lost["last_turn"] <= second["at"]  # while its process stood still, it could not be told
    effects.open_gate()
    wait_for_state(db, run, "completed")


def test_an_ending_waits_for_the_database_to_come_back(
    url: str, instance: Start, effects: Effects, network: Proxy, db: psycopg.Connection[Any]
) -> None:
    action = add(url, effects, "hold")
    cut_off = instance(at=network.url, lease=30)
    run = trigger(url, action)
    effects.wait_for("began")
    network.freeze()
    network.cut()
    effects.open_gate()
    effects.wait_for("ended")
    wait_until(lambda: "finish" in (cut_off.ask("health")["last_error"] or ""), "it to try")
    assert state_of(db, run) == "running"
    network.thaw()
    network.cut()
    assert wait_for_state(db, run, "completed")["attempt"] == 1


def test_a_run_whose_action_was_deleted_is_told(url: str, instance: Start, effects: Effects) -> None:
    action = add(url, effects, "hold")
    instance(lease=LEASE)
    trigger(url, action)
    effects.wait_for("began")
    ask(url, lambda scheduler: scheduler.remove(action))
    effects.wait_for("lost")


def test_shutting_down_waits_for_what_runs_and_claims_nothing_more(
    url: str, instance: Start, effects: Effects, db: psycopg.Connection[Any]
) -> None:
    action = add(url, effects, "hold")
    leaving = instance()
    run = trigger(url, action)
    effects.wait_for("began")
    leaving.signal(signal.SIGTERM)
    assert leaving.answer() == "stopping"
    later = add(url, effects, "record")
    another = trigger(url, later)
    assert state_of(db, run) == "running"
    effects.open_gate()
    assert leaving.wait() == 0
    assert state_of(db, run) == "completed" and state_of(db, another) == "pending"
    assert not advisory_locks(db)


@pytest.mark.parametrize("recovery", ["at_most_once", "at_least_once"])
def test_shutting_down_is_bounded_and_hands_over_what_is_to_be_done_at_least_once(
    url: str, instance: Start, effects: Effects, db: psycopg.Connection[Any], recovery: str
) -> None:
    action = add(url, effects, "hold", recovery=recovery)
    leaving = instance(grace=0.3, lease=60)
    run = trigger(url, action)
    effects.wait_for("began")
    staying = instance(lease=60, poll_interval=60)
    leaving.signal(signal.SIGTERM)
    assert leaving.wait() == 0
    effects.wait_for("cancelled")
    if recovery == "at_most_once":
        assert wait_for_state(db, run, "cancelled")["error"]
        assert unfinished(db) == 0
    else:
        assert effects.wait_for("began", 2)[1]["pid"] == staying.pid
        effects.open_gate()
        wait_for_state(db, run, "completed")


def test_a_thread_that_cannot_be_stopped_does_not_hold_up_the_end_of_the_process_and_is_settled_by_its_lease(
    url: str, instance: Start, effects: Effects, db: psycopg.Connection[Any]
) -> None:
    action = add(url, effects, "hold_in_thread", recovery="at_least_once")
    leaving = instance(grace=0.1, lease=2)
    run = trigger(url, action)
    effects.wait_for("began")
    leaving.signal(signal.SIGTERM)
    assert leaving.wait() == 0
    assert state_of(db, run) == "running"  # nobody says that it has ended
    instance(lease=2)
    effects.wait_for("began", 2)
    effects.open_gate()
    wait_for_state(db, run, "completed")
