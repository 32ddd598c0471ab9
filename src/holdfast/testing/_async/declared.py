"""What an engine promises if it declares it: one part for each capability."""

from __future__ import annotations

import pytest

from ...errors import InvalidOption, NotHeld
from ..child import Child
from .crew import Crew, asynchronous, open_locks
from .part import AsyncPart, is_free, until_waiting


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
                assert not await is_free(locks, key)
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
