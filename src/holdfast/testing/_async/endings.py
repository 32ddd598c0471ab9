"""What a holder has, and every way in which it ends."""

from __future__ import annotations

import time

import pytest

from ..._async.blocks import AsyncHold
from ..._async.held import AsyncHeld
from ..._async.locks import AsyncLocks
from ...errors import ClientClosed, LockLost, NotAcquired, NotHeld
from .crew import Crew, Flag, asynchronous, open_locks, pause
from .part import AsyncPart, SomethingWrong, becomes_free, is_free, until_waiting


class AsyncEndings(AsyncPart):
    """What every engine promises to a holder."""

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

            async def try_all(wait: float) -> None:
                with pytest.raises(NotAcquired):
                    async with locks.hold_many(keys, wait=wait):
                        raise AssertionError("two holders")

            async with locks.hold(keys[0]):
                await crew.start(try_all, 0).result()
                assert await crew.start(is_free, locks, keys[1]).result()
                assert await crew.start(is_free, locks, keys[2]).result()
                await crew.start(try_all, 0.1).result()
                assert await crew.start(becomes_free, locks, keys[1]).result()
                assert await crew.start(becomes_free, locks, keys[2]).result()
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
