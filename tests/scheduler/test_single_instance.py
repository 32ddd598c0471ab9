"""``async_db=None``: the same scheduler, in memory, with no database at all; and what handlers can do to it."""

import asyncio
import logging
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from holdfast.scheduler import ClaimLost, Execution, NoSuchAction, NotNow, RunState, ScheduledAction, Scheduler
from holdfast.scheduler import execution as execution_module

Handlers = dict[str, Any]


def run(main: Coroutine[Any, Any, None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(20):
            await main

    asyncio.run(bounded())


async def until(condition: Callable[[], Any]) -> None:
    while not condition():  # noqa: ASYNC110
        await asyncio.sleep(0.005)


async def outcome(scheduler: Scheduler, **fields: Any) -> Any:
    """What a triggered run of such an action ends as."""
    action = await scheduler.add(ScheduledAction(**fields))
    assert action.id is not None
    await scheduler.trigger(action.id)
    while True:
        (ended,) = await scheduler.runs(action.id)
        if ended.state.final:
            await until(lambda: action.id not in scheduler._running_actions)  # the record comes first
            return ended
        await asyncio.sleep(0.005)


async def works(execution: Execution) -> dict[str, Any]:
    return {"key": execution.idempotency_key}


def in_thread(execution: Execution) -> str:
    return "done"


async def raises(execution: Execution) -> None:
    raise KeyError("gone")


async def hangs(execution: Execution) -> None:
    await asyncio.Event().wait()


async def ignores_cancelling(execution: Execution) -> str:
    try:
        await asyncio.sleep(5)
    except asyncio.CancelledError:
        await asyncio.sleep(0.3)
    return "too late"


async def cancels_itself(execution: Execution) -> None:
    raise asyncio.CancelledError


async def exits(execution: Execution) -> None:
    raise SystemExit(3)


HANDLERS: Handlers = {
    "cancels_itself": cancels_itself,
    "exits": exits,
    "exits_in_thread": lambda execution: sys.exit(3),
    "works": works,
    "in_thread": in_thread,
    "raises": raises,
    "hangs": hangs,
    "ignores": ignores_cancelling,
    "error": lambda execution: {"error": "no luck"},
    "no_success": lambda execution: {"success": False},
    "odd": lambda execution: {"x": object()},
    "nan": lambda execution: {"x": float("nan")},
    "nul": lambda execution: {"x": "a\x00b"},
    "huge": lambda execution: "x" * 1_000_000,
    "stop_iteration": lambda execution: next(iter(())),
}


@pytest.mark.parametrize(
    ("action_type", "state", "error"),
    [
        ("works", "completed", None),
        ("in_thread", "completed", None),
        ("raises", "failed", "KeyError: 'gone'"),
        ("error", "failed", "no luck"),
        ("no_success", "failed", "success: false"),
        ("hangs", "timeout", "timeout of 0.2 s"),
        ("ignores", "timeout", "timeout of 0.2 s"),
        ("odd", "completed", None),
        ("nan", "completed", None),
        ("nul", "completed", None),
        ("huge", "completed", None),
        ("stop_iteration", "failed", "StopIteration"),
        ("cancels_itself", "failed", "CancelledError"),
        ("exits", "failed", "SystemExit: 3"),
        ("exits_in_thread", "failed", "SystemExit: 3"),
    ],
)
@pytest.mark.parametrize("where", ["memory", "postgres"])
def test_whatever_a_handler_does_ends_as_something_recorded(
    request: pytest.FixtureRequest, where: str, action_type: str, state: str, error: str | None
) -> None:
    async_db = None if where == "memory" else request.getfixturevalue("url")

    async def main() -> None:
        async with Scheduler(async_db, dispatchers=HANDLERS) as scheduler:
            limit = 0.2 if state == "timeout" else None  # what is to end by itself may take its time
            given = {"timeout_seconds": limit, "recovery": "at_least_once"}
            ended = await outcome(scheduler, action_type=action_type, **given)
            assert ended.state == state and ended.attempt == 1 and ended.duration_seconds is not None
            assert ended.error is None if error is None else error in ended.error
            assert not scheduler._running_actions

    run(main())


def test_a_single_instance_runs_intervals_retries_and_events() -> None:
    ran: list[str] = []

    async def note(execution: Execution) -> None:
        ran.append(execution.action.name)
        if execution.action.name == "fails" and execution.run.attempt < 3:
            raise RuntimeError("again")

    async def main() -> None:
        async with Scheduler(dispatchers={"note": note}) as scheduler:
            await scheduler.add(
                ScheduledAction(action_type="note", name="every", schedule_type="interval", interval_seconds=1)
            )
            await scheduler.add(ScheduledAction(action_type="note", name="event", event="go"))
            await scheduler.fire("go")
            ended = await outcome(scheduler, action_type="note", name="fails", max_retries=5, retry_delay_seconds=0.05)
            assert (ended.state, ended.attempt) == (RunState.COMPLETED, 3)
            await until(lambda: ran.count("every") >= 2)
        assert ran.count("event") == 1 and ran.count("fails") == 3

    run(main())


def test_what_is_not_there_or_not_allowed_now_is_said() -> None:
    async def main() -> None:
        scheduler = Scheduler(dispatchers=HANDLERS)
        with pytest.raises(NoSuchAction):
            await scheduler.get(1)
        action = await scheduler.add(ScheduledAction(action_type="works", max_executions=1))
        assert action.id is not None
        await scheduler.pause(action.id)
        with pytest.raises(NotNow, match="paused"):
            await scheduler.trigger(action.id)
        await scheduler.resume(action.id)
        await scheduler.trigger(action.id)
        with pytest.raises(NotNow, match="1 times"):
            await scheduler.trigger(action.id)
        with pytest.raises(ValueError, match="execution_count"):
            await scheduler.update(action.id, execution_count=0)
        with pytest.raises(ValueError, match="payload"):
            await scheduler.fire("x", object())

    run(main())


def test_a_changed_schedule_goes_on_from_now() -> None:
    async def main() -> None:
        scheduler = Scheduler(dispatchers=HANDLERS)
        action = await scheduler.add(
            ScheduledAction(action_type="works", schedule_type="interval", interval_seconds=3600)
        )
        assert action.id is not None and action.next_run_at is not None
        changed = await scheduler.update(action.id, interval_seconds=60)
        assert changed.next_run_at is not None and changed.next_run_at < action.next_run_at
        renamed = await scheduler.update(action.id, name="other")
        assert renamed.next_run_at == changed.next_run_at
        with pytest.raises(ValueError, match="interval_seconds"):
            await scheduler.update(action.id, interval_seconds=0)

    run(main())


def test_a_once_that_has_finished_can_be_given_another_time_and_none_in_the_past() -> None:
    async def main() -> None:
        scheduler = Scheduler(dispatchers=HANDLERS)
        now = datetime.now(UTC)
        soon: Any = {"schedule_type": "once", "run_at": now + timedelta(hours=1), "max_executions": 1}
        action = await scheduler.add(ScheduledAction(action_type="works", **soon))
        assert action.id is not None
        await scheduler.trigger(action.id)
        assert (await scheduler.get(action.id)).status == "finished"
        with pytest.raises(ValueError, match="run_at"):
            await scheduler.update(action.id, run_at=now - timedelta(hours=1))
        later = await scheduler.update(action.id, run_at=now + timedelta(hours=2), max_executions=2)
        assert later.status == "active" and later.next_run_at == now + timedelta(hours=2)
        with pytest.raises(ValueError, match="status"):
            await scheduler.add(ScheduledAction(action_type="works", status="finished"))

    run(main())


@pytest.mark.parametrize("where", ["memory", "postgres"])
def test_an_event_is_heard_between_start_and_end_only(request: pytest.FixtureRequest, where: str) -> None:
    async def main() -> None:
        scheduler = Scheduler(None if where == "memory" else request.getfixturevalue("url"), dispatchers=HANDLERS)
        now, hour = datetime.now(UTC), timedelta(hours=1)
        windows: dict[str, dict[str, Any]] = {
            "always": {},
            "now": {"start_at": now - hour, "end_at": now + hour},
            "not yet": {"start_at": now + hour},
            "over": {"end_at": now - hour},
            "paused": {"status": "paused"},
        }
        names = {}
        for name, window in windows.items():
            names[(await scheduler.add(ScheduledAction(action_type="works", event="go", **window))).id] = name
        assert [names[fired.action_id] for fired in await scheduler.fire("go")] == ["always", "now"]
        for wrong in ("", "x" * 201, "a\x00b"):
            with pytest.raises(ValueError, match="event"):
                await scheduler.fire(wrong)
        with pytest.raises(ValueError, match=r"payload: is .* bytes"):
            await scheduler.fire("go", "x" * 300_000)
        await scheduler.stop()

    run(main())


@pytest.mark.parametrize("where", ["memory", "postgres"])
def test_executing_begins_nothing_that_is_paused_or_over_or_has_run_as_often_as_it_may(
    request: pytest.FixtureRequest, where: str
) -> None:
    async def main() -> None:
        scheduler = Scheduler(None if where == "memory" else request.getfixturevalue("url"), dispatchers=HANDLERS)
        spent = await scheduler.add(ScheduledAction(action_type="works", max_executions=1))
        paused = await scheduler.add(ScheduledAction(action_type="works", status="paused"))
        an_hour_ago = datetime.now(UTC) - timedelta(hours=1)
        once: Any = {"schedule_type": "once", "run_at": an_hour_ago, "misfire": "run_once"}
        due = await scheduler.add(ScheduledAction(action_type="works", **once))
        assert due.id is not None
        await scheduler._execute_action(due)
        over = await scheduler.get(due.id)
        assert (over.status, over.next_occurrence) == ("finished", None)
        for action in (spent, spent, paused, due, over):
            await scheduler._execute_action(action)
        assert scheduler.statistics.completed == 2
        assert spent.id is not None and len(await scheduler.runs(spent.id)) == 1
        await scheduler.stop()

    run(main())


def test_a_handler_in_a_thread_is_told_of_its_timeout_and_may_end_early() -> None:
    def looks(execution: Execution) -> None:
        while True:
            execution.check()
            time.sleep(0.005)

    async def main() -> None:
        async with Scheduler(dispatchers={"looks": looks}) as scheduler:
            ended = await outcome(scheduler, action_type="looks", timeout_seconds=0.1)
            assert ended.state == RunState.TIMEOUT

    run(main())


def test_a_handler_can_ask_whether_it_has_lost_its_claim() -> None:
    seen: list[Any] = []

    async def asks(execution: Execution) -> None:
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            seen.append(execution.lost)
            with pytest.raises(ClaimLost):
                execution.check()
            raise

    async def main() -> None:
        async with Scheduler(dispatchers={"asks": asks}, lease=3) as scheduler:
            action = await scheduler.add(ScheduledAction(action_type="asks"))
            assert action.id is not None
            await scheduler.trigger(action.id)
            await until(lambda: scheduler._running_actions)
            await scheduler.remove(action.id)
            await until(lambda: seen)
        assert seen == [True] and scheduler.statistics.lost == 1

    run(main())


def test_a_thread_that_does_not_end_is_warned_of_and_its_run_stays_its_own(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(execution_module, "FIRST_WARNING", 0.02)
    may_end = threading.Event()

    def hangs_in_thread(execution: Execution) -> None:
        may_end.wait(20)

    async def main() -> None:
        async with Scheduler(dispatchers={"hangs": hangs_in_thread}) as scheduler:
            action = await scheduler.add(ScheduledAction(action_type="hangs", timeout_seconds=0.05))
            assert action.id is not None
            await scheduler.trigger(action.id)
            await until(lambda: caplog.text.count("action=thread_goes_on") > 1)
            (run,) = await scheduler.runs(action.id)
            assert run.state == "running"
            may_end.set()
            await until(lambda: not scheduler._running_actions)
            (run,) = await scheduler.runs(action.id)
            assert run.state == "timeout"

    with caplog.at_level(logging.WARNING):
        run(main())


def test_no_more_than_max_running_run_at_once_and_the_rest_follow() -> None:
    now_running, most = 0, 0

    async def counts(execution: Execution) -> None:
        nonlocal now_running, most
        now_running += 1
        most = max(most, now_running)
        await asyncio.sleep(0.02)
        now_running -= 1

    async def main() -> None:
        async with Scheduler(dispatchers={"counts": counts}, max_running=3) as scheduler:
            action = await scheduler.add(ScheduledAction(action_type="counts", allow_concurrent=True))
            assert action.id is not None
            for _ in range(20):
                await scheduler.trigger(action.id)
            await until(lambda: scheduler.statistics.completed >= 20)
        assert most == 3

    run(main())


def test_old_runs_are_forgotten_in_time() -> None:
    async def main() -> None:
        async with Scheduler(dispatchers=HANDLERS) as scheduler:
            ended = await outcome(scheduler, action_type="works")
            assert await scheduler._store.forget_runs(60) == 0
            assert await scheduler._store.forget_runs(-1) == 1
            assert list(await scheduler.runs(ended.action_id)) == []

    run(main())


def test_single_instance_mode_says_that_it_is(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with Scheduler() as scheduler:
            assert scheduler.ready and scheduler.health().mode == "single-instance"
        assert not scheduler.ready

    with caplog.at_level(logging.INFO):
        run(main())
    assert "mode=single-instance" in caplog.text
