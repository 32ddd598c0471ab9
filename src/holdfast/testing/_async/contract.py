"""What every engine promises, whatever it is made of. Each test names its promise and makes the race happen."""

from __future__ import annotations

import time
from math import inf
from uuid import uuid4

import pytest

from ..._async.blocks import AsyncHold
from ..._async.held import AsyncHeld
from ..._async.locks import AsyncLocks
from ...errors import ClientClosed, InvalidOption, LockLost, NotAcquired, NotHeld, Unsupported, WouldDeadlock
from ..child import Child
from .crew import Crew, Flag, asynchronous, open_locks, pause

OVERRUN = 0.5
"""How much later than its deadline a wait may end on a busy machine. It is far less than a second deadline would be."""


class SomethingWrong(Exception):
    pass


async def until_waiting(locks: AsyncLocks, key: str, waiters: int = 1) -> None:
    """Returns when so many wait for the key, as far as the engine can tell, and have had a moment to do so."""
    for _ in range(2000):
        found = [holder for holder in await locks.holders() if holder.key == f"key:{key}"]
        if found and (found[0].waiting is None or found[0].waiting >= waiters):
            break
        await pause(0.005)
    else:
        raise AssertionError(f"{waiters} waiters for {key} were never seen")
    await pause(0.02)


async def is_free(locks: AsyncLocks, key: str) -> bool:
    async with locks.try_hold(key) as held:
        return held is not None


class AsyncPart:
    """Subclass a part and give it a ``target``: a URL, or ``module:function`` for a function that makes the engine."""

    @pytest.fixture
    def target(self) -> str:
        raise NotImplementedError("override the fixture `target`")

    @pytest.fixture
    def key(self) -> str:
        return f"contract-{uuid4().hex}"


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


class AsyncEveryEngine(AsyncPart):
    """What every engine promises."""

    @asynchronous
    async def test_every_declared_capability_is_tested(self, target: str) -> None:
        async with open_locks(target) as locks:
            declared = locks.capabilities
        assert isinstance(self, AsyncBetweenProcesses) == (declared.scope != "process")
        assert isinstance(self, AsyncInOrderOfArrival) == declared.fair
        assert isinstance(self, AsyncDetaching) == declared.detachable

    @asynchronous
    async def test_what_is_not_declared_is_refused_at_once(self, target: str, key: str) -> None:
        async with open_locks(target) as locks:
            async with locks.hold(key) as held:
                if not locks.capabilities.detachable:
                    with pytest.raises(Unsupported):
                        await held.detach()
                    with pytest.raises(Unsupported):
                        locks.attach("holdfast1:key%3Aany:secret")
                if not locks.capabilities.fenced:
                    with pytest.raises(Unsupported):
                        _ = held.fence
                if not locks.capabilities.expiring:
                    assert held.remaining == inf
                    with pytest.raises(Unsupported):
                        await held.extend(10)
                    with pytest.raises(Unsupported, match="ttl"):
                        locks.hold(key, ttl=10)
                held.check()

    # One at a time

    @asynchronous
    async def test_a_held_lock_is_busy_until_its_block_ends(self, target: str, key: str) -> None:
        async with open_locks(target) as locks, open_locks(target) as others, Crew() as crew:
            async with locks.hold(key) as held:
                assert str(held.key) == f"key:{key}"
                assert not await crew.start(is_free, others, key).result()
            assert await crew.start(is_free, others, key).result()

    @asynchronous
    async def test_one_worker_at_a_time_and_no_update_lost(self, target: str, key: str) -> None:
        total = 0

        async def add(locks: AsyncLocks) -> None:
            nonlocal total
            for _ in range(20):
                async with locks.hold(key):
                    before = total
                    await pause(0)
                    total = before + 1

        async with open_locks(target) as locks, open_locks(target) as others:
            async with Crew() as crew:
                for number in range(8):
                    crew.start(add, locks if number % 2 else others)
            assert total == 8 * 20
            assert await is_free(locks, key)

    @asynchronous
    async def test_different_keys_do_not_wait_for_each_other(self, target: str, key: str) -> None:
        async with open_locks(target) as locks, open_locks(target, space="elsewhere") as elsewhere, Crew() as crew:
            async with locks.hold(key):
                assert await crew.start(is_free, locks, f"{key}-other").result()
                assert await crew.start(is_free, elsewhere, key).result()

    # Waiting

    @asynchronous
    async def test_a_waiter_gets_the_lock_when_it_is_released(self, target: str, key: str) -> None:
        async with open_locks(target) as locks, Crew() as crew:

            async def wait() -> int:
                async with locks.hold(key):
                    return 7

            async with locks.hold(key):
                waiter = crew.start(wait)
                await until_waiting(locks, key)
                assert not waiter.done
            assert await waiter.result() == 7

    @asynchronous
    async def test_wait_zero_tries_once(self, target: str, key: str) -> None:
        async with open_locks(target) as locks, Crew() as crew:

            async def at_once() -> float:
                start = time.monotonic()
                with pytest.raises(NotAcquired) as caught:
                    async with locks.hold(key, wait=0):
                        raise AssertionError("two holders")
                assert caught.value.key is not None and caught.value.key.name == key
                return time.monotonic() - start

            async with locks.hold(key):
                assert await crew.start(at_once).result() < OVERRUN
            async with locks.hold(key, wait=0):
                pass

    @asynchronous
    async def test_a_wait_ends_at_its_deadline(self, target: str, key: str) -> None:
        async with open_locks(target) as locks, Crew() as crew:

            async def wait() -> float:
                start = time.monotonic()
                with pytest.raises(NotAcquired):
                    async with locks.hold(key, wait=0.2):
                        raise AssertionError("two holders")
                return time.monotonic() - start

            async with locks.hold(key):
                waited = await crew.start(wait).result()
            assert 0.199 <= waited < 0.2 + OVERRUN
            assert await is_free(locks, key)

    @asynchronous
    async def test_a_deadline_does_not_start_again_when_the_lock_changes_hands(self, target: str, key: str) -> None:
        async with open_locks(target) as locks, Crew() as crew:
            stop, passing = Flag(), Flag()

            async def pass_around() -> None:
                while not stop.raised:
                    async with locks.hold(key):
                        passing.raise_()
                        await pause(0.03)

            async def wait() -> float:
                start = time.monotonic()
                try:
                    async with locks.hold(key, wait=0.3):
                        pass
                except NotAcquired:
                    pass
                return time.monotonic() - start

            for _ in range(4):
                crew.start(pass_around)
            await passing.wait()
            assert await crew.start(wait).result() < 0.3 + OVERRUN
            stop.raise_()

    @asynchronous
    async def test_a_tiny_wait_is_a_short_one_not_an_endless_one(self, target: str, key: str) -> None:
        async with open_locks(target) as locks, Crew() as crew:

            async def wait() -> float:
                start = time.monotonic()
                with pytest.raises(NotAcquired):
                    async with locks.hold(key, wait=0.0001):
                        raise AssertionError("two holders")
                return time.monotonic() - start

            async with locks.hold(key):
                assert await crew.start(wait).result() < OVERRUN

    @asynchronous
    async def test_a_waiter_that_gave_up_does_not_hold_up_the_next(self, target: str, key: str) -> None:
        async with open_locks(target) as locks, Crew() as crew:

            async def give_up() -> None:
                with pytest.raises(NotAcquired):
                    async with locks.hold(key, wait=0.1):
                        raise AssertionError("two holders")

            async def wait() -> bool:
                async with locks.hold(key):
                    return True

            async with locks.hold(key):
                gone = crew.start(give_up)
                await until_waiting(locks, key)
                patient = crew.start(wait)
                await gone.result()
            assert await patient.result()

    # Skipping

    @asynchronous
    async def test_a_busy_try_gives_none_and_runs_the_body(self, target: str, key: str) -> None:
        async with open_locks(target) as locks, Crew() as crew:

            async def body_fails() -> None:
                async with locks.try_hold(key) as held:
                    assert held is None
                    raise SomethingWrong

            async with locks.hold(key):
                with pytest.raises(SomethingWrong):
                    await crew.start(body_fails).result()
            async with locks.try_hold(key) as held:
                assert held is not None
                assert not await crew.start(is_free, locks, key).result()

    # Re-entry

    @asynchronous
    async def test_re_entry_is_an_error_at_once_and_the_outer_lock_stays(self, target: str, key: str) -> None:
        async with open_locks(target) as locks, open_locks(target) as others, Crew() as crew:
            async with locks.hold(key) as held:
                for client in (locks, others):
                    with pytest.raises(WouldDeadlock):
                        async with client.hold(key):
                            raise AssertionError("two holders")
                    async with client.try_hold(key) as again:
                        assert again is None
                held.check()
                assert not await crew.start(is_free, others, key).result()

    @asynchronous
    async def test_work_that_is_spawned_in_a_block_is_not_a_re_entry(self, target: str, key: str) -> None:
        async with open_locks(target) as locks, Crew() as crew:

            async def wait() -> bool:
                async with locks.hold(key):
                    return True

            async with locks.hold(key):
                spawned = crew.start(wait)
                await until_waiting(locks, key)
                assert not spawned.done
            assert await spawned.result()

    # How a block ends

    @asynchronous
    async def test_an_error_in_the_body_comes_out_and_the_lock_is_free(self, target: str, key: str) -> None:
        async with open_locks(target) as locks:
            with pytest.raises(SomethingWrong):
                async with locks.hold(key):
                    raise SomethingWrong
            assert await is_free(locks, key)

    @asynchronous
    async def test_release_works_once_and_leaving_the_block_is_silent(self, target: str, key: str) -> None:
        async with open_locks(target) as locks, Crew() as crew:
            async with locks.hold(key) as held:
                await held.release()
                assert await crew.start(is_free, locks, key).result()
                assert not held.lost
                with pytest.raises(NotHeld):
                    held.check()
                with pytest.raises(NotHeld):
                    await held.release()

    @asynchronous
    async def test_a_released_handle_cannot_touch_the_next_holders_lock(self, target: str, key: str) -> None:
        async with open_locks(target) as locks, Crew() as crew:
            async with locks.hold(key) as stale:
                await stale.release()
                async with locks.hold(key) as present:
                    with pytest.raises(NotHeld):
                        await stale.release()
                    present.check()
                    assert not await crew.start(is_free, locks, key).result()

    @asynchronous
    async def test_a_handle_can_be_released_from_elsewhere(self, target: str, key: str) -> None:
        async with open_locks(target) as locks, Crew() as crew:
            async with locks.hold(key) as held:
                await crew.start(held.release).result()
                assert await crew.start(is_free, locks, key).result()
                async with locks.hold(key):  # not a re-entry: nothing is held
                    pass

    @asynchronous
    async def test_a_block_can_be_left_elsewhere(self, target: str, key: str) -> None:
        async with open_locks(target) as locks, Crew() as crew:
            block = locks.hold(key)
            await block.__aenter__()
            await crew.start(block.__aexit__, None, None, None).result()
            assert await crew.start(is_free, locks, key).result()
            assert await is_free(locks, key)

    @asynchronous
    async def test_a_block_is_entered_once(self, target: str, key: str) -> None:
        async with open_locks(target) as locks:
            block: AsyncHold = locks.hold(key)
            async with block:
                pass
            with pytest.raises(Exception, match="entered before"):
                await block.__aenter__()
            assert await is_free(locks, key)

    # Several at once

    @asynchronous
    async def test_hold_many_takes_all_or_none(self, target: str, key: str) -> None:
        async with open_locks(target) as locks, Crew() as crew:
            keys = [f"{key}-{number}" for number in (3, 1, 2, 1)]

            async def try_all() -> None:
                with pytest.raises(NotAcquired):
                    async with locks.hold_many(keys, wait=0.1):
                        raise AssertionError("two holders")

            async with locks.hold(keys[0]):
                await crew.start(try_all).result()
                assert await crew.start(is_free, locks, keys[1]).result()
                assert await crew.start(is_free, locks, keys[2]).result()
            async with locks.hold_many(keys) as handles:
                assert [held.key.name for held in handles] == keys
                for name in keys:
                    assert not await crew.start(is_free, locks, name).result()
            for name in keys:
                assert await is_free(locks, name)

    @asynchronous
    async def test_hold_many_in_any_order_cannot_dead_lock(self, target: str, key: str) -> None:
        keys = [f"{key}-{number}" for number in range(3)]

        async def take(locks: AsyncLocks, order: list[str]) -> None:
            for _ in range(10):
                async with locks.hold_many(order, wait=10):
                    await pause(0)

        async with open_locks(target, order="raise") as locks, Crew() as crew:
            for order in (keys, keys[::-1], [keys[1], keys[2], keys[0]]):
                crew.start(take, locks, order)

    # What a handle tells

    @asynchronous
    async def test_the_fence_grows_with_every_grant(self, target: str, key: str) -> None:
        async with open_locks(target) as locks:
            if not locks.capabilities.fenced:
                return  # refused, see above
            fences: list[int] = []

            async def take() -> None:
                for _ in range(10):
                    async with locks.hold(key) as held:
                        fences.append(held.fence)

            async with Crew() as crew:
                for _ in range(4):
                    crew.start(take)
            assert fences == sorted(set(fences))

    @asynchronous
    async def test_a_lease_can_be_extended_and_never_adds_up(self, target: str, key: str) -> None:
        async with open_locks(target) as locks:
            if not locks.capabilities.expiring:
                return  # refused, see above
            async with locks.hold(key, ttl=10) as held:
                assert 0 < held.remaining <= 10
                for _ in range(20):
                    await held.extend(20)
                assert 10 < held.remaining <= 20

    @asynchronous
    async def test_operators_see_who_holds_what(self, target: str, key: str) -> None:
        async with open_locks(target) as locks:
            async with locks.hold(key, note="nightly import"):
                holder = next(holder for holder in await locks.holders() if holder.key == f"key:{key}")
                assert holder.note == "nightly import"
                assert holder.here
                assert holder.since is None or abs(time.time() - holder.since) < 5
            assert not [holder for holder in await locks.holders() if holder.key == f"key:{key}"]

    # Loss

    @asynchronous
    async def test_an_evicted_holder_is_told(self, target: str, key: str) -> None:
        async with open_locks(target) as locks, open_locks(target) as operator, Crew() as crew:
            told, inside = Flag(), Flag()
            lost: list[AsyncHeld] = []

            def on_lost(held: AsyncHeld) -> None:
                lost.append(held)
                told.raise_()

            async def work() -> None:
                async with locks.hold(key, on_lost=on_lost) as held:
                    inside.raise_()
                    while True:
                        await pause(0.005)
                        held.check()

            worker = crew.start(work)
            await inside.wait()
            assert await operator.evict(key)
            with pytest.raises(LockLost) as caught:
                await worker.result()
            assert caught.value.key is not None and caught.value.key.name == key
            await told.wait()
            assert len(lost) == 1 and lost[0].lost and lost[0].remaining == 0
            assert await is_free(operator, key)
            assert not await operator.evict(key)

    @asynchronous
    async def test_a_lost_lock_is_raised_at_exit_and_the_successor_keeps_its_own(self, target: str, key: str) -> None:
        async with open_locks(target) as locks, open_locks(target) as operator, Crew() as crew:
            inside, taken, finish = Flag(), Flag(), Flag()

            async def evict_and_take() -> None:
                await inside.wait()
                await operator.evict(key)
                async with operator.hold(key) as present:
                    taken.raise_()
                    await finish.wait()
                    present.check()

            crew.start(evict_and_take)
            with pytest.raises(LockLost):
                async with locks.hold(key) as held:
                    inside.raise_()
                    await taken.wait()
                    with pytest.raises(LockLost):
                        await held.release()
            await taken.wait()
            assert not await is_free(locks, key)
            finish.raise_()

    @asynchronous
    async def test_the_bodys_own_error_is_kept_when_the_lock_is_lost(self, target: str, key: str) -> None:
        async with open_locks(target) as locks:
            with pytest.raises(SomethingWrong) as caught:
                async with locks.hold(key) as held:
                    held._ticket.lose("in this very moment")
                    raise SomethingWrong
            assert any("lost" in note for note in caught.value.__notes__)

    # The end

    @asynchronous
    async def test_a_closed_client_refuses_and_leaves_nothing(self, target: str, key: str) -> None:
        async with open_locks(target) as others, Crew() as crew:
            locks = open_locks(target)

            async def wait() -> None:
                with pytest.raises(ClientClosed):
                    async with locks.hold(key, wait=None):
                        raise AssertionError("two holders")

            async with others.hold(key):
                waiter = crew.start(wait)
                await until_waiting(others, key)
                await locks.close()
                await waiter.result()
            await locks.close()
            with pytest.raises(ClientClosed):
                await locks.hold(key).__aenter__()
            assert await is_free(others, key)

    @asynchronous
    async def test_closing_a_client_frees_what_it_holds_and_says_so(self, target: str, key: str) -> None:
        async with open_locks(target) as others, Crew() as crew:
            locks = open_locks(target)
            block = locks.hold(key)
            held = await crew.start(block.__aenter__).result()
            await locks.close()
            assert await is_free(others, key)  # at once, not only when the block is left
            assert held.lost
            with pytest.raises(LockLost):
                await block.__aexit__(None, None, None)

    @asynchronous
    async def test_nothing_is_left_behind_by_waits_that_came_to_nothing(self, target: str, key: str) -> None:
        async with open_locks(target) as locks:

            async def wait_in_vain() -> None:
                with pytest.raises(NotAcquired):
                    async with locks.hold(key, wait=0.02):
                        raise AssertionError("two holders")

            async with locks.hold(key), Crew() as crew:
                for _ in range(20):
                    crew.start(wait_in_vain)
            for _ in range(400):
                if await is_free(locks, key) and not [h for h in await locks.holders() if h.key == f"key:{key}"]:
                    break
                await pause(0.005)
            else:
                raise AssertionError("the key is still held by a wait that is over")
