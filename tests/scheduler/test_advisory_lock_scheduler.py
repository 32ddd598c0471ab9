"""The gate in front of every execution. Each promise has a sibling with real processes in test_occurrences.py."""

import asyncio
from typing import Any
from unittest.mock import AsyncMock, MagicMock, patch

import psycopg
import pytest
from actions_for_tests import add, ask
from instances import Effects

from holdfast import InvalidOption, LockNamespace
from holdfast.scheduler import ACTION_DISPATCHERS, SCHEDULER_LOCK_NAMESPACE, ScheduledAction, Scheduler, get_scheduler


def an_action() -> ScheduledAction:
    return ScheduledAction(id=42, action_type="run_task", name="test")


def test_try_acquire_lock_no_async_db_returns_true() -> None:
    async def main() -> None:
        scheduler = Scheduler(async_db=None)
        assert await scheduler._try_acquire_action_lock(42) is True
        assert scheduler.health().mode == "single-instance"

    asyncio.run(main())


def test_try_acquire_lock_db_error_returns_false(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async_db = MagicMock()
        async_db._pool.connection.side_effect = Exception("connection refused")
        scheduler = Scheduler(async_db=async_db)
        assert await scheduler._try_acquire_action_lock(42) is False
        async_db._pool.connection.assert_called_once()
        assert scheduler.statistics.database_errors == 1
        assert not scheduler.health().healthy and "connection refused" in (scheduler.health().last_error or "")

    asyncio.run(main())
    assert "action=lock_failed" in caplog.text  # loudly


def test_advisory_lock_prevents_duplicate_execution() -> None:
    async def main() -> None:
        scheduler, handler = Scheduler(async_db=None), AsyncMock(return_value={})
        action = an_action()
        with (
            patch.object(scheduler, "_try_acquire_action_lock", AsyncMock(side_effect=[True, False])),
            patch.dict(ACTION_DISPATCHERS, {"run_task": handler}),
        ):
            await asyncio.gather(scheduler._execute_action(action), scheduler._execute_action(action))
        assert handler.await_count == 1

    asyncio.run(main())


def test_lock_skip_removes_from_running_actions() -> None:
    async def main() -> None:
        scheduler, handler = Scheduler(async_db=None), AsyncMock()
        scheduler._running_actions.add(42)
        with (
            patch.object(scheduler, "_try_acquire_action_lock", AsyncMock(return_value=False)),
            patch.dict(ACTION_DISPATCHERS, {"run_task": handler}),
        ):
            await scheduler._execute_action(an_action())
        assert 42 not in scheduler._running_actions
        handler.assert_not_called()

    asyncio.run(main())


def test_execute_action_with_lock_success_proceeds() -> None:
    async def main() -> None:
        scheduler, handler = Scheduler(async_db=None), AsyncMock(return_value={})
        action = an_action()
        with (
            patch.object(scheduler, "_try_acquire_action_lock", AsyncMock(return_value=True)),
            patch.dict(ACTION_DISPATCHERS, {"run_task": handler}),
        ):
            await scheduler._execute_action(action)
        assert handler.await_count == 1
        assert action.execution_count == 1
        assert scheduler._running_actions == set()

    asyncio.run(main())


def test_the_gate_is_the_two_int_advisory_lock_of_the_schedulers_namespace(url: str, effects: Effects) -> None:
    action = add(url, effects, "record")
    with psycopg.connect(url) as other:
        other.execute("select pg_advisory_xact_lock(%s::int4, %s::int4)", (SCHEDULER_LOCK_NAMESPACE, action))
        assert ask(url, lambda scheduler: scheduler._try_acquire_action_lock(action)) is False
        assert ask(url, lambda scheduler: scheduler._try_acquire_action_lock(action + 1)) is True
        assert ask(url, lambda scheduler: scheduler._try_acquire_action_lock(action), namespace=500) is True
    assert ask(url, lambda scheduler: scheduler._try_acquire_action_lock(action)) is True


def test_an_action_that_somebody_has_locked_is_not_claimed(url: str, effects: Effects) -> None:
    action = add(url, effects, "record")
    shown = ask(url, lambda scheduler: scheduler.get(action))
    with psycopg.connect(url) as other:
        other.execute("select pg_advisory_xact_lock(%s::int4, %s::int4)", (SCHEDULER_LOCK_NAMESPACE, action))
        for gate in (True, False):  # the claim takes the lock itself, whatever the gate said

            async def execute(scheduler: Scheduler, gate: bool = gate) -> None:
                with patch.object(scheduler, "_try_acquire_action_lock", AsyncMock(return_value=gate)):
                    await scheduler._execute_action(shown)

            ask(url, execute)
    assert effects.all() == []
    ask(url, lambda scheduler: scheduler._execute_action(shown))
    assert len(effects.all("ran")) == 1


@pytest.mark.parametrize("namespace", [LockNamespace.AGENT, 97, 2**31, "2"])
def test_a_namespace_of_other_locks_is_refused(namespace: object) -> None:
    with pytest.raises(InvalidOption, match="namespace"):
        Scheduler(namespace=namespace)  # type: ignore[arg-type]


def test_a_database_that_is_not_there_does_not_mean_a_single_instance() -> None:
    from holdfast import BackendUnavailable

    with pytest.raises(BackendUnavailable):
        asyncio.run(Scheduler("postgresql://127.0.0.1:1/nothing").start())
    with pytest.raises(InvalidOption, match="async_db"):
        Scheduler(async_db=object())


def test_a_database_without_the_tables_says_what_to_do(url: str, db: psycopg.Connection[Any]) -> None:
    from holdfast import BackendUnavailable

    db.execute("drop schema holdfast cascade")
    with pytest.raises(BackendUnavailable, match="holdfast db upgrade"):
        asyncio.run(Scheduler(url).start())


def test_get_scheduler_is_one_for_the_process_until_it_is_stopped() -> None:
    async def main() -> None:
        first = get_scheduler()
        assert get_scheduler() is first
        with pytest.raises(InvalidOption, match="already"):
            get_scheduler(async_db="postgresql://elsewhere/db")
        await first.stop()
        second = get_scheduler(lease=5)
        assert second is not first
        await second.stop()

    asyncio.run(main())
