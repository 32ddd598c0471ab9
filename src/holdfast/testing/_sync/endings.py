# Written by scripts/mirror.py from _async/endings.py. Change that file, then run: make mirror
"""What a holder has, and every way in which it ends."""

from __future__ import annotations

import time

import pytest

from ..._sync.blocks import Hold
from ..._sync.held import Held
from ..._sync.locks import Locks
from ...errors import ClientClosed, LockLost, NotAcquired, NotHeld
from .crew import Crew, Flag, open_locks, pause, synchronous
from .part import Part, SomethingWrong, becomes_free, is_free, until_waiting


class Endings(Part):
    """What every engine promises to a holder."""

    # How a block ends

    @synchronous
    def test_an_error_in_the_body_comes_out_and_the_lock_is_free(self, target: str, key: str) -> None:
        with open_locks(target) as locks:
            with pytest.raises(SomethingWrong):
                with locks.hold(key):
                    raise SomethingWrong
            assert is_free(locks, key)

    @synchronous
    def test_release_works_once_and_leaving_the_block_is_silent(self, target: str, key: str) -> None:
        with open_locks(target) as locks, Crew() as crew:
            with locks.hold(key) as held:
                held.release()
                assert crew.start(is_free, locks, key).result()
                assert not held.lost
                with pytest.raises(NotHeld):
                    held.check()
                with pytest.raises(NotHeld):
                    held.release()

    @synchronous
    def test_a_released_handle_cannot_touch_the_next_holders_lock(self, target: str, key: str) -> None:
        with open_locks(target) as locks, Crew() as crew:
            with locks.hold(key) as stale:
                stale.release()
                with locks.hold(key) as present:
                    with pytest.raises(NotHeld):
                        stale.release()
                    present.check()
                    assert not crew.start(is_free, locks, key).result()

    @synchronous
    def test_a_handle_can_be_released_from_elsewhere(self, target: str, key: str) -> None:
        with open_locks(target) as locks, Crew() as crew:
            with locks.hold(key) as held:
                crew.start(held.release).result()
                assert crew.start(is_free, locks, key).result()
                with locks.hold(key):  # not a re-entry: nothing is held
                    pass

    @synchronous
    def test_a_block_can_be_left_elsewhere(self, target: str, key: str) -> None:
        with open_locks(target) as locks, Crew() as crew:
            block = locks.hold(key)
            block.__enter__()
            crew.start(block.__exit__, None, None, None).result()
            assert crew.start(is_free, locks, key).result()
            assert is_free(locks, key)

    @synchronous
    def test_a_block_is_entered_once(self, target: str, key: str) -> None:
        with open_locks(target) as locks:
            block: Hold = locks.hold(key)
            with block:
                pass
            with pytest.raises(Exception, match="entered before"):
                block.__enter__()
            assert is_free(locks, key)

    # Several at once

    @synchronous
    def test_hold_many_takes_all_or_none(self, target: str, key: str) -> None:
        with open_locks(target) as locks, Crew() as crew:
            keys = [f"{key}-{number}" for number in (3, 1, 2, 1)]

            def try_all(wait: float) -> None:
                with pytest.raises(NotAcquired):
                    with locks.hold_many(keys, wait=wait):
                        raise AssertionError("two holders")

            with locks.hold(keys[0]):
                crew.start(try_all, 0).result()
                assert crew.start(is_free, locks, keys[1]).result()
                assert crew.start(is_free, locks, keys[2]).result()
                crew.start(try_all, 0.1).result()
                assert crew.start(becomes_free, locks, keys[1]).result()
                assert crew.start(becomes_free, locks, keys[2]).result()
            with locks.hold_many(keys) as handles:
                assert [held.key.name for held in handles] == keys
                for name in keys:
                    assert not crew.start(is_free, locks, name).result()
            for name in keys:
                assert is_free(locks, name)

    @synchronous
    def test_hold_many_in_any_order_cannot_dead_lock(self, target: str, key: str) -> None:
        keys = [f"{key}-{number}" for number in range(3)]

        def take(locks: Locks, order: list[str]) -> None:
            for _ in range(10):
                with locks.hold_many(order, wait=10):
                    pause(0)

        with open_locks(target, order="raise") as locks, Crew() as crew:
            for order in (keys, keys[::-1], [keys[1], keys[2], keys[0]]):
                crew.start(take, locks, order)

    # What a handle tells

    @synchronous
    def test_the_fence_grows_with_every_grant(self, target: str, key: str) -> None:
        with open_locks(target) as locks:
            if not locks.capabilities.fenced:
                return  # refused, see above
            fences: list[int] = []

            def take() -> None:
                for _ in range(10):
                    with locks.hold(key) as held:
                        fences.append(held.fence)

            with Crew() as crew:
                for _ in range(4):
                    crew.start(take)
            assert fences == sorted(set(fences))

    @synchronous
    def test_a_lease_can_be_extended_and_never_adds_up(self, target: str, key: str) -> None:
        with open_locks(target) as locks:
            if not locks.capabilities.expiring:
                return  # refused, see above
            with locks.hold(key, ttl=10) as held:
                assert 0 < held.remaining <= 10
                for _ in range(20):
                    held.extend(20)
                assert 10 < held.remaining <= 20

    @synchronous
    def test_operators_see_who_holds_what(self, target: str, key: str) -> None:
        with open_locks(target) as locks:
            with locks.hold(key, note="nightly import"):
                holder = next(holder for holder in locks.holders() if holder.key == f"key:{key}")
                assert holder.note == "nightly import"
                assert holder.here
                assert holder.since is None or abs(time.time() - holder.since) < 5
            assert not [holder for holder in locks.holders() if holder.key == f"key:{key}"]

    # Loss

    @synchronous
    def test_an_evicted_holder_is_told(self, target: str, key: str) -> None:
        with open_locks(target) as locks, open_locks(target) as operator, Crew() as crew:
            told, inside = Flag(), Flag()
            lost: list[Held] = []

            def on_lost(held: Held) -> None:
                lost.append(held)
                told.raise_()

            def work() -> None:
                with locks.hold(key, on_lost=on_lost) as held:
                    inside.raise_()
                    while True:
                        pause(0.005)
                        held.check()

            worker = crew.start(work)
            inside.wait()
            assert operator.evict(key)
            with pytest.raises(LockLost) as caught:
                worker.result()
            assert caught.value.key is not None and caught.value.key.name == key
            told.wait()
            assert len(lost) == 1 and lost[0].lost and lost[0].remaining == 0
            assert is_free(operator, key)
            assert not operator.evict(key)

    @synchronous
    def test_a_lost_lock_is_raised_at_exit_and_the_successor_keeps_its_own(self, target: str, key: str) -> None:
        with open_locks(target) as locks, open_locks(target) as operator, Crew() as crew:
            inside, taken, finish = Flag(), Flag(), Flag()

            def evict_and_take() -> None:
                inside.wait()
                operator.evict(key)
                with operator.hold(key) as present:
                    taken.raise_()
                    finish.wait()
                    present.check()

            crew.start(evict_and_take)
            with pytest.raises(LockLost):
                with locks.hold(key) as held:
                    inside.raise_()
                    taken.wait()
                    with pytest.raises(LockLost):
                        held.release()
            taken.wait()
            assert not is_free(locks, key)
            finish.raise_()

    @synchronous
    def test_the_bodys_own_error_is_kept_when_the_lock_is_lost(self, target: str, key: str) -> None:
        with open_locks(target) as locks:
            with pytest.raises(SomethingWrong) as caught:
                with locks.hold(key) as held:
                    held._ticket.lose("in this very moment")
                    raise SomethingWrong
            assert any("lost" in note for note in caught.value.__notes__)

    # The end

    @synchronous
    def test_a_closed_client_refuses_and_leaves_nothing(self, target: str, key: str) -> None:
        with open_locks(target) as others, Crew() as crew:
            locks = open_locks(target)

            def wait() -> None:
                with pytest.raises(ClientClosed):
                    with locks.hold(key, wait=None):
                        raise AssertionError("two holders")

            with others.hold(key):
                waiter = crew.start(wait)
                until_waiting(others, key)
                locks.close()
                waiter.result()
            locks.close()
            with pytest.raises(ClientClosed):
                locks.hold(key).__enter__()
            assert is_free(others, key)

    @synchronous
    def test_closing_a_client_frees_what_it_holds_and_says_so(self, target: str, key: str) -> None:
        with open_locks(target) as others, Crew() as crew:
            locks = open_locks(target)
            block = locks.hold(key)
            held = crew.start(block.__enter__).result()
            locks.close()
            assert is_free(others, key)  # at once, not only when the block is left
            assert held.lost
            with pytest.raises(LockLost):
                block.__exit__(None, None, None)

    @synchronous
    def test_nothing_is_left_behind_by_waits_that_came_to_nothing(self, target: str, key: str) -> None:
        with open_locks(target) as locks:

            def wait_in_vain() -> None:
                with pytest.raises(NotAcquired):
                    with locks.hold(key, wait=0.02):
                        raise AssertionError("two holders")

            with locks.hold(key), Crew() as crew:
                for _ in range(20):
                    crew.start(wait_in_vain)
            for _ in range(400):
                if is_free(locks, key) and not [h for h in locks.holders() if h.key == f"key:{key}"]:
                    break
                pause(0.005)
            else:
                raise AssertionError("the key is still held by a wait that is over")
