"""Cancellation at every await point, and threads and tasks of several loops on one key."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Coroutine, Generator
from typing import Any

import pytest

from ..._async.held import AsyncHeld
from ..._async.locks import AsyncLocks
from ..._sync.locks import Locks
from ...errors import LockLost, WouldDeadlock
from ..target import PATIENCE, open_engine
from .crew import Crew, Flag, asynchronous, open_locks, pause
from .part import AsyncPart, is_free, until_waiting


class CancelledAt:
    """Awaits a coroutine, and cancels it the moment it is about to be suspended for the ``n``-th time."""

    def __init__(self, work: Coroutine[Any, Any, Any], n: int) -> None:
        self._work = work
        self._n = n
        self.reached = False

    def __await__(self) -> Generator[Any, Any, Any]:
        steps = self._work.__await__()
        try:
            waits_for = steps.send(None)
            while True:
                if self._n == 0:
                    self.reached = True
                    waits_for = steps.throw(asyncio.CancelledError())
                self._n -= 1
                try:
                    outcome = yield waits_for
                except BaseException as interruption:
                    waits_for = steps.throw(interruption)
                else:
                    waits_for = steps.send(outcome)
        except StopIteration as done:
            return done.value


class AsyncInterruptions(AsyncPart):
    @asynchronous
    async def test_a_cancellation_at_any_await_point_leaves_nothing(self, target: str, key: str) -> None:
        async with open_locks(target) as locks:

            async def hold() -> None:
                async with locks.hold(key):
                    await asyncio.sleep(0)

            for contended in (False, True):
                for n in range(100):
                    attempt = CancelledAt(hold(), n)
                    async with locks.hold(f"{key}-other" if not contended else key):
                        job = asyncio.ensure_future(self._outcome(attempt))
                        for _ in range(n + 3):  # the release below falls before, into and after the n-th step
                            await asyncio.sleep(0)
                    await asyncio.wait_for(job, PATIENCE)
                    async with locks.hold(key, wait=PATIENCE):
                        pass
                    if not attempt.reached:
                        break
                else:
                    raise AssertionError("an acquire and release with a hundred await points?")

    async def _outcome(self, attempt: CancelledAt) -> None:
        try:
            await attempt
        except asyncio.CancelledError:
            pass

    @asynchronous
    async def test_a_thousand_cancelled_waiters_leave_nothing(self, target: str, key: str) -> None:
        dice = random.Random(1)
        inside = 0

        async def hold(locks: AsyncLocks) -> None:
            nonlocal inside
            async with locks.hold(key):
                assert inside == 0
                inside += 1
                try:
                    await asyncio.sleep(0)
                finally:
                    inside -= 1

        async with open_locks(target) as locks:
            for _ in range(50):
                tasks = [asyncio.create_task(hold(locks)) for _ in range(20)]
                for _ in range(dice.randrange(12)):
                    await asyncio.sleep(0)
                dice.shuffle(tasks)
                for task in tasks:
                    task.cancel()
                    if dice.random() < 0.3:
                        await asyncio.sleep(0)
                outcomes = await asyncio.gather(*tasks, return_exceptions=True)
                assert all(isinstance(outcome, asyncio.CancelledError | None) for outcome in outcomes), outcomes
            async with locks.hold(key, wait=PATIENCE):
                pass
            assert not [holder for holder in await locks.holders() if holder.key == f"key:{key}"]

    @asynchronous
    async def test_a_loss_cancels_the_body_once_and_an_outside_cancellation_wins(self, target: str, key: str) -> None:
        async with open_locks(target) as locks, open_locks(target) as operator:
            inside = Flag()
            handles: list[AsyncHeld] = []

            async def work() -> None:
                async with locks.hold(key) as held:
                    handles.append(held)
                    inside.raise_()
                    await asyncio.sleep(PATIENCE)

            task = asyncio.create_task(work())
            await inside.wait()
            assert await operator.evict(key)
            with pytest.raises(LockLost):
                await task
            assert task.cancelling() == 0

            inside = Flag()
            task = asyncio.create_task(work())
            await inside.wait()
            handles[-1]._ticket.lose("it is lost and cancelled in one turn of the loop")
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await is_free(operator, key)

    @asynchronous
    async def test_a_timeout_around_a_lost_block_stays_usable(self, target: str, key: str) -> None:
        async with open_locks(target) as locks, open_locks(target) as operator:
            with pytest.raises(LockLost):
                async with asyncio.timeout(PATIENCE):
                    async with locks.hold(key):
                        await operator.evict(key)
                        await asyncio.sleep(PATIENCE)
            await asyncio.sleep(0)  # no cancellation is left over

    @asynchronous
    async def test_threads_and_tasks_of_two_loops_take_turns(self, target: str, key: str) -> None:
        total = 0

        async def add_in_task(locks: AsyncLocks) -> None:
            nonlocal total
            for _ in range(15):
                async with locks.hold(key):
                    before = total
                    await asyncio.sleep(0)
                    total = before + 1

        def add_in_thread(locks: Locks) -> None:
            nonlocal total
            for _ in range(15):
                with locks.hold(key):
                    before = total
                    threading.Event().wait(0)
                    total = before + 1

        async def add_in_tasks(locks: AsyncLocks) -> None:
            await asyncio.gather(*(add_in_task(locks) for _ in range(3)))

        async with open_locks(target) as locks:
            with Locks(open_engine(target)) as blocking:
                work = [
                    asyncio.to_thread(add_in_thread, blocking),
                    asyncio.to_thread(add_in_thread, blocking),
                    asyncio.to_thread(asyncio.run, add_in_tasks(locks)),
                    add_in_tasks(locks),
                ]
                await asyncio.wait_for(asyncio.gather(*work), PATIENCE)
        assert total == (2 + 3 + 3) * 15

    @asynchronous
    async def test_a_blocking_wait_for_a_task_of_the_same_loop_is_refused(self, target: str, key: str) -> None:
        async with open_locks(target) as locks, Crew() as crew:
            inside, finish = Flag(), Flag()

            async def hold() -> None:
                async with locks.hold(key):
                    inside.raise_()
                    await finish.wait()

            crew.start(hold)
            await inside.wait()
            with Locks(open_engine(target)) as blocking:
                with pytest.raises(WouldDeadlock):
                    blocking.hold(key, wait=PATIENCE).__enter__()
                with blocking.try_hold(key) as held:
                    assert held is None
            finish.raise_()

    @asynchronous
    async def test_a_waiter_whose_loop_is_gone_is_passed_over(self, target: str, key: str) -> None:
        async with open_locks(target) as locks:
            loop, orphans = asyncio.new_event_loop(), list[object]()

            def wait_and_leave() -> None:
                task = loop.create_task(locks.hold(key, wait=PATIENCE).__aenter__())
                loop.run_forever()
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                loop.close()  # with the waiter still in it
                orphans.append(task)

            async with locks.hold(key):
                leaving = asyncio.create_task(asyncio.to_thread(wait_and_leave))
                await until_waiting(locks, key)
                loop.call_soon_threadsafe(loop.stop)
                await leaving
                assert await is_free(locks, f"{key}-other")
            async with locks.hold(key, wait=PATIENCE):
                pass
            await pause(0)
