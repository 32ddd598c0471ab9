"""What an engine promises if it declares it: one part for each capability."""

from __future__ import annotations

import pytest

from ...errors import InvalidOption, LockLost, NotHeld, WouldDeadlock
from ..child import Child
from ..stopwatch import Stopwatch
from .crew import Crew, Flag, asynchronous, open_locks
from .part import OVERRUN, AsyncPart, is_free, until_waiting


class AsyncBetweenProcesses(AsyncPart):
    """For engines whose ``scope`` is more than one process."""

    @asynchronous
    async def test_processes_take_turns_and_lose_no_update(self, target: str, key: str, tmp_path: object) -> None:
        counter = f"{tmp_path}/counter"
        with open(counter, "w") as file:
            file.write("0")
        async with open_locks(target) as locks:
            children = [Child(target) for _ in range(3)]
            try:
                async with locks.hold(key):
                    for child in children:
                        child.send("count", key, counter, "20")
                for child in children:
                    assert child.answer() == "done"
            finally:
                for child in children:
                    child.end()
            with open(counter) as file:
                assert file.read() == str(3 * 20)

    @asynchronous
    async def test_a_killed_holder_leaves_the_lock_to_the_next(self, target: str, key: str) -> None:
        async with open_locks(target) as locks:
            child = Child(target)
            try:
                assert child.ask("hold", key).startswith("held")
                # A short lease may have ended, if the machine stood still.
                assert locks.capabilities.expiring or not await is_free(locks, key)
            finally:
                child.kill()
            async with locks.hold(key):  # in time, or NotAcquired
                pass


class AsyncInOrderOfArrival(AsyncPart):
    """For engines that are ``fair``."""

    @asynchronous
    async def test_waiters_are_served_in_order_of_arrival(self, target: str, key: str) -> None:
        async with open_locks(target) as locks, Crew() as crew:
            served: list[int] = []

            async def wait(number: int) -> None:
                async with locks.hold(key):
                    served.append(number)

            async with locks.hold(key):
                jobs = []
                for number in range(8):
                    jobs.append(crew.start(wait, number))
                    await until_waiting(locks, key, number + 1)
            for job in jobs:
                await job.result()
            assert served == list(range(8))


class AsyncDetaching(AsyncPart):
    """For engines whose locks are ``detachable``."""

    @asynchronous
    async def test_a_detached_lock_stays_held_until_it_is_attached_and_released(self, target: str, key: str) -> None:
        async with open_locks(target) as locks, Crew() as crew:
            async with locks.hold(key) as held:
                token = await held.detach()
                with pytest.raises(NotHeld):
                    held.check()
            assert not await is_free(locks, key)
            async with locks.attach(token) as taken_up:
                taken_up.check()
                assert taken_up.key == held.key
                assert not await crew.start(is_free, locks, key).result()
            assert await is_free(locks, key)

    @asynchronous
    async def test_a_stale_token_is_refused_and_touches_nobody(self, target: str, key: str) -> None:
        async with open_locks(target) as locks, Crew() as crew:
            async with locks.hold(key) as held:
                token = await held.detach()
            async with locks.attach(token):
                pass
            with pytest.raises(NotHeld):  # free
                await locks.attach(token).__aenter__()
            async with locks.hold(key) as held:
                present_token = await held.detach()
            with pytest.raises(NotHeld):  # detached anew
                await locks.attach(token).__aenter__()
            async with locks.attach(present_token):
                pass
            async with locks.hold(key) as present:  # held
                with pytest.raises(NotHeld):
                    async with locks.attach(token):
                        raise AssertionError("two holders")
                present.check()
                assert not await crew.start(is_free, locks, key).result()
            with pytest.raises(InvalidOption):
                locks.attach("not a token")

    @asynchronous
    async def test_a_detached_lock_is_released_by_its_token_once_and_by_no_other(self, target: str, key: str) -> None:
        async with open_locks(target) as locks:
            async with locks.hold(key) as held:
                stale = await held.detach()
            assert await locks.release_detached(stale)
            assert not await locks.release_detached(stale)  # free
            async with locks.hold(key) as held:
                assert not await locks.release_detached(stale)
                held.check()
                token = await held.detach()
            assert not await locks.release_detached(stale)  # detached anew
            assert not await is_free(locks, key)
            async with Crew() as crew:
                waiter = crew.start(locks.hold(key).__aenter__)
                await until_waiting(locks, key, 1)
                watch = Stopwatch()
                assert await locks.release_detached(token)
                heir = await waiter.result()
                assert watch.awake < OVERRUN  # woken by it
                assert not await locks.release_detached(token)
                await heir.release()
            assert await is_free(locks, key)

    @asynchronous
    async def test_one_lock_is_looked_up_among_others(self, target: str, key: str) -> None:
        async with open_locks(target) as locks:
            assert await locks.holder(key) is None
            async with locks.hold(f"{key}-other"), locks.hold(key, note="why") as held:
                found = await locks.holder(key)
                assert found is not None and (found.key, found.note) == (str(held.key), "why")
                assert found in await locks.holders()
            assert await locks.holder(key) is None

    @asynchronous
    async def test_a_retried_step_finds_its_lock_also_after_its_token_was_taken_up(self, target: str, key: str) -> None:
        async with open_locks(target) as locks:
            async with locks.hold(key, owner="turn-17") as held:
                token = await held.detach()
            async with locks.attach(token) as taken_up:
                token = await taken_up.detach()
            async with locks.hold(key, owner="turn-17", wait=0):
                assert not await locks.release_detached(token)
            assert await is_free(locks, key)

    @asynchronous
    async def test_an_owner_gets_its_own_lock_back_at_once_and_its_older_handle_is_told(
        self, target: str, key: str
    ) -> None:
        async with open_locks(target) as locks, open_locks(target) as others:
            told = Flag()
            block = locks.hold(key, owner="turn-17", on_lost=lambda held: told.raise_())
            async with Crew() as crew:
                older = await crew.start(block.__aenter__).result()  # by a task or thread that is gone by now
            async with others.try_hold(key, owner="turn-18") as held:
                assert held is None
            async with others.try_hold(key) as held:
                assert held is None
            async with others.hold(key, wait=0, owner="turn-17") as newer:
                assert older.lost
                await told.wait()
                if locks.capabilities.fenced:
                    assert newer.fence > older.fence
                with pytest.raises(LockLost):
                    await older.release()
                with pytest.raises(LockLost):
                    await block.__aexit__(None, None, None)
                newer.check()
                async with locks.try_hold(key, owner="turn-18") as held:
                    assert held is None
            assert await is_free(locks, key)

    @asynchronous
    async def test_an_owner_that_is_chosen_is_no_re_entry(self, target: str, key: str) -> None:
        async with open_locks(target) as locks:
            with pytest.raises(LockLost):
                async with locks.hold(key, owner="turn-17"):
                    with pytest.raises(WouldDeadlock):
                        await locks.hold(key).__aenter__()
                    with pytest.raises(WouldDeadlock):
                        await locks.hold(key, owner="turn-18").__aenter__()
                    async with locks.hold(key, owner="turn-17", wait=5):
                        pass
            assert await is_free(locks, key)

    @asynchronous
    async def test_a_detached_lock_goes_to_its_owner_and_its_token_is_stale(self, target: str, key: str) -> None:
        async with open_locks(target) as locks:
            async with locks.hold(key, owner="turn-17") as held:
                token = await held.detach()
            async with locks.hold(key, owner="turn-17", wait=0):
                with pytest.raises(NotHeld):
                    await locks.attach(token).__aenter__()
            for owner in ("", "a\0b", "a\ud800"):
                with pytest.raises(InvalidOption):
                    locks.hold(key, owner=owner)
