# Written by scripts/mirror.py from _async/declared.py. Change that file, then run: make mirror
"""What an engine promises if it declares it: one part for each capability."""

from __future__ import annotations

import pytest

from ...errors import InvalidOption, LockLost, NotHeld, WouldDeadlock
from ..child import Child
from ..stopwatch import Stopwatch
from .crew import Crew, Flag, open_locks, synchronous
from .part import OVERRUN, Part, is_free, until_waiting


class BetweenProcesses(Part):
    """For engines whose ``scope`` is more than one process."""

    @synchronous
    def test_processes_take_turns_and_lose_no_update(self, target: str, key: str, tmp_path: object) -> None:
        counter = f"{tmp_path}/counter"
        with open(counter, "w") as file:
            file.write("0")
        with open_locks(target) as locks:
            children = [Child(target) for _ in range(3)]
            try:
                with locks.hold(key):
                    for child in children:
                        child.send("count", key, counter, "20")
                for child in children:
                    assert child.answer() == "done"
            finally:
                for child in children:
                    child.end()
            with open(counter) as file:
                assert file.read() == str(3 * 20)

    @synchronous
    def test_a_killed_holder_leaves_the_lock_to_the_next(self, target: str, key: str) -> None:
        with open_locks(target) as locks:
            child = Child(target)
            try:
                assert child.ask("hold", key).startswith("held")
                # A short lease may have ended, if the machine stood still.
                assert locks.capabilities.expiring or not is_free(locks, key)
            finally:
                child.kill()
            with locks.hold(key):  # in time, or NotAcquired
                pass


class InOrderOfArrival(Part):
    """For engines that are ``fair``."""

    @synchronous
    def test_waiters_are_served_in_order_of_arrival(self, target: str, key: str) -> None:
        with open_locks(target) as locks, Crew() as crew:
            served: list[int] = []

            def wait(number: int) -> None:
                with locks.hold(key):
                    served.append(number)

            with locks.hold(key):
                jobs = []
                for number in range(8):
                    jobs.append(crew.start(wait, number))
                    until_waiting(locks, key, number + 1)
            for job in jobs:
                job.result()
            assert served == list(range(8))


class Detaching(Part):
    """For engines whose locks are ``detachable``."""

    @synchronous
    def test_a_detached_lock_stays_held_until_it_is_attached_and_released(self, target: str, key: str) -> None:
        with open_locks(target) as locks, Crew() as crew:
            with locks.hold(key) as held:
                token = held.detach()
                with pytest.raises(NotHeld):
                    held.check()
            assert not is_free(locks, key)
            with locks.attach(token) as taken_up:
                taken_up.check()
                assert taken_up.key == held.key
                assert not crew.start(is_free, locks, key).result()
            assert is_free(locks, key)

    @synchronous
    def test_a_stale_token_is_refused_and_touches_nobody(self, target: str, key: str) -> None:
        with open_locks(target) as locks, Crew() as crew:
            with locks.hold(key) as held:
                token = held.detach()
            with locks.attach(token):
                pass
            with pytest.raises(NotHeld):  # free
                locks.attach(token).__enter__()
            with locks.hold(key) as held:
                present_token = held.detach()
            with pytest.raises(NotHeld):  # detached anew
                locks.attach(token).__enter__()
            with locks.attach(present_token):
                pass
            with locks.hold(key) as present:  # held
                with pytest.raises(NotHeld):
                    with locks.attach(token):
                        raise AssertionError("two holders")
                present.check()
                assert not crew.start(is_free, locks, key).result()
            with pytest.raises(InvalidOption):
                locks.attach("not a token")

    @synchronous
    def test_a_detached_lock_is_released_by_its_token_once_and_by_no_other(self, target: str, key: str) -> None:
        with open_locks(target) as locks:
            with locks.hold(key) as held:
                stale = held.detach()
            assert locks.release_detached(stale)
            assert not locks.release_detached(stale)  # free
            with locks.hold(key) as held:
                assert not locks.release_detached(stale)
                held.check()
                token = held.detach()
            assert not locks.release_detached(stale)  # detached anew
            assert not is_free(locks, key)
            with Crew() as crew:
                waiter = crew.start(locks.hold(key).__enter__)
                until_waiting(locks, key, 1)
                watch = Stopwatch()
                assert locks.release_detached(token)
                heir = waiter.result()
                assert watch.awake < OVERRUN  # woken by it
                assert not locks.release_detached(token)
                heir.release()
            assert is_free(locks, key)

    @synchronous
    def test_one_lock_is_looked_up_among_others(self, target: str, key: str) -> None:
        with open_locks(target) as locks:
            assert locks.holder(key) is None
            with locks.hold(f"{key}-other"), locks.hold(key, note="why") as held:
                found = locks.holder(key)
                assert found is not None and (found.key, found.note) == (str(held.key), "why")
                assert found in locks.holders()
            assert locks.holder(key) is None

    @synchronous
    def test_a_retried_step_finds_its_lock_also_after_its_token_was_taken_up(self, target: str, key: str) -> None:
        with open_locks(target) as locks:
            with locks.hold(key, owner="turn-17") as held:
                token = held.detach()
            with locks.attach(token) as taken_up:
                token = taken_up.detach()
            with locks.hold(key, owner="turn-17", wait=0):
                assert not locks.release_detached(token)
            assert is_free(locks, key)

    @synchronous
    def test_an_owner_gets_its_own_lock_back_at_once_and_its_older_handle_is_told(self, target: str, key: str) -> None:
        with open_locks(target) as locks, open_locks(target) as others:
            told = Flag()
            block = locks.hold(key, owner="turn-17", on_lost=lambda held: told.raise_())
            with Crew() as crew:
                older = crew.start(block.__enter__).result()  # by a task or thread that is gone by now
            with others.try_hold(key, owner="turn-18") as held:
                assert held is None
            with others.try_hold(key) as held:
                assert held is None
            with others.hold(key, wait=0, owner="turn-17") as newer:
                assert older.lost
                told.wait()
                if locks.capabilities.fenced:
                    assert newer.fence > older.fence
                with pytest.raises(LockLost):
                    older.release()
                with pytest.raises(LockLost):
                    block.__exit__(None, None, None)
                newer.check()
                with locks.try_hold(key, owner="turn-18") as held:
                    assert held is None
            assert is_free(locks, key)

    @synchronous
    def test_an_owner_that_is_chosen_is_no_re_entry(self, target: str, key: str) -> None:
        with open_locks(target) as locks:
            with pytest.raises(LockLost):
                with locks.hold(key, owner="turn-17"):
                    with pytest.raises(WouldDeadlock):
                        locks.hold(key).__enter__()
                    with pytest.raises(WouldDeadlock):
                        locks.hold(key, owner="turn-18").__enter__()
                    with locks.hold(key, owner="turn-17", wait=5):
                        pass
            assert is_free(locks, key)

    @synchronous
    def test_a_detached_lock_goes_to_its_owner_and_its_token_is_stale(self, target: str, key: str) -> None:
        with open_locks(target) as locks:
            with locks.hold(key, owner="turn-17") as held:
                token = held.detach()
            with locks.hold(key, owner="turn-17", wait=0):
                with pytest.raises(NotHeld):
                    locks.attach(token).__enter__()
            for owner in ("", "a\0b", "a\ud800"):
                with pytest.raises(InvalidOption):
                    locks.hold(key, owner=owner)
