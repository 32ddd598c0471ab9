# Written by scripts/mirror.py from _async/turns.py. Change that file, then run: make mirror
"""Taking turns: exclusion, waiting, skipping, re-entry."""

from __future__ import annotations

import random
from math import inf

import pytest

from ..._sync.locks import Locks
from ...errors import NotAcquired, Unsupported, WouldDeadlock
from ..stopwatch import Stopwatch
from .crew import Crew, Flag, open_locks, pause, synchronous
from .declared import BetweenProcesses, Detaching, InOrderOfArrival
from .leases import Leases
from .part import OVERRUN, STUCK, Part, SomethingWrong, becomes_free, is_free, until_waiting


class TakingTurns(Part):
    """What every engine promises to those who want the lock: one at a time, and no longer than they would wait."""

    @synchronous
    def test_every_declared_capability_is_tested(self, target: str) -> None:
        with open_locks(target) as locks:
            declared = locks.capabilities
        assert isinstance(self, BetweenProcesses) == (declared.scope != "process")
        assert isinstance(self, InOrderOfArrival) == declared.fair
        assert isinstance(self, Detaching) == declared.detachable
        assert isinstance(self, Leases) == declared.expiring

    @synchronous
    def test_what_is_not_declared_is_refused_at_once(self, target: str, key: str) -> None:
        with open_locks(target) as locks:
            with locks.hold(key) as held:
                if not locks.capabilities.detachable:
                    with pytest.raises(Unsupported):
                        held.detach()
                    with pytest.raises(Unsupported):
                        locks.attach("holdfast1:key%3Aany:secret")
                    with pytest.raises(Unsupported, match="owner"):
                        locks.hold(key, owner="turn-17")
                if not locks.capabilities.fenced:
                    with pytest.raises(Unsupported):
                        _ = held.fence
                if not locks.capabilities.expiring:
                    assert held.remaining == inf
                    with pytest.raises(Unsupported):
                        held.extend(10)
                    with pytest.raises(Unsupported, match="ttl"):
                        locks.hold(key, ttl=10)
                held.check()

    # One at a time

    @synchronous
    def test_a_held_lock_is_busy_until_its_block_ends(self, target: str, key: str) -> None:
        with open_locks(target) as locks, open_locks(target) as others, Crew() as crew:
            with locks.hold(key) as held:
                assert str(held.key) == f"key:{key}"
                assert not crew.start(is_free, others, key).result()
            assert crew.start(is_free, others, key).result()

    @synchronous
    def test_one_worker_at_a_time_and_no_update_lost(self, target: str, key: str) -> None:
        total = 0

        def add(locks: Locks) -> None:
            nonlocal total
            for _ in range(20):
                with locks.hold(key):
                    before = total
                    pause(0)
                    total = before + 1

        with open_locks(target) as locks, open_locks(target) as others:
            with Crew() as crew:
                for number in range(8):
                    crew.start(add, locks if number % 2 else others)
            assert total == 8 * 20
            assert is_free(locks, key)

    @synchronous
    def test_different_keys_do_not_wait_for_each_other(self, target: str, key: str) -> None:
        with open_locks(target) as locks, open_locks(target, space="elsewhere") as elsewhere, Crew() as crew:
            with locks.hold(key):
                assert crew.start(is_free, locks, f"{key}-other").result()
                assert crew.start(is_free, elsewhere, key).result()

    # Waiting

    @synchronous
    def test_a_waiter_gets_the_lock_when_it_is_released(self, target: str, key: str) -> None:
        with open_locks(target) as locks, Crew() as crew:

            def wait() -> int:
                with locks.hold(key):
                    return 7

            with locks.hold(key):
                waiter = crew.start(wait)
                until_waiting(locks, key)
                assert not waiter.done
            assert waiter.result() == 7

    @synchronous
    def test_wait_zero_tries_once(self, target: str, key: str) -> None:
        with open_locks(target) as locks, Crew() as crew:

            def at_once() -> float:
                watch = Stopwatch()
                with pytest.raises(NotAcquired) as caught:
                    with locks.hold(key, wait=0):
                        raise AssertionError("two holders")
                assert caught.value.key is not None and caught.value.key.name == key
                return watch.awake

            with locks.hold(key):
                assert crew.start(at_once).result() < OVERRUN
            with locks.hold(key, wait=0):
                pass

    @synchronous
    def test_a_wait_ends_at_its_deadline(self, target: str, key: str) -> None:
        with open_locks(target) as locks, Crew() as crew:

            def wait() -> None:
                watch = Stopwatch()
                with pytest.raises(NotAcquired):
                    with locks.hold(key, wait=0.2):
                        raise AssertionError("two holders")
                assert watch.elapsed >= 0.199 and watch.awake < 0.2 + OVERRUN

            with locks.hold(key):
                crew.start(wait).result()
            assert becomes_free(locks, key)

    @synchronous
    def test_a_crowd_in_a_hurry_forgets_nobody(self, target: str, key: str) -> None:
        """Waits that end at any moment: what one of them was doing for the others just then must go on without it."""
        keys = [f"{key}-{number}" for number in range(3)]
        inside: set[str] = set()

        def hurry(locks: Locks, dice: random.Random) -> None:
            for _ in range(200):
                one, wait = dice.choice(keys), dice.choice([0.0, 0.001, 0.003, 0.01])
                watch = Stopwatch()
                try:
                    with locks.hold(one, wait=wait):
                        assert one not in inside, "two holders"
                        inside.add(one)
                        pause(dice.choice([0.0, 0.001]))
                        inside.remove(one)
                except NotAcquired:
                    pass
                assert watch.awake < STUCK

        with open_locks(target) as locks, open_locks(target) as others:
            for client in (locks, others):
                assert is_free(client, key)  # connected, however short the waits to come
            with Crew() as crew:
                for number in range(10):
                    crew.start(hurry, locks if number % 2 else others, random.Random(number))
            for one in keys:
                assert becomes_free(locks, one)

    @synchronous
    def test_a_deadline_does_not_start_again_when_the_lock_changes_hands(self, target: str, key: str) -> None:
        with open_locks(target) as locks, Crew() as crew:
            stop, passing = Flag(), Flag()

            def pass_around() -> None:
                while not stop.raised:
                    with locks.hold(key):
                        passing.raise_()
                        pause(0.03)

            def wait() -> float:
                watch = Stopwatch()
                try:
                    with locks.hold(key, wait=0.3):
                        pass
                except NotAcquired:
                    pass
                return watch.awake

            for _ in range(4):
                crew.start(pass_around)
            passing.wait()
            assert crew.start(wait).result() < 0.3 + OVERRUN
            stop.raise_()

    @synchronous
    def test_a_tiny_wait_is_a_short_one_not_an_endless_one(self, target: str, key: str) -> None:
        with open_locks(target) as locks, Crew() as crew:

            def wait() -> float:
                watch = Stopwatch()
                with pytest.raises(NotAcquired):
                    with locks.hold(key, wait=0.0001):
                        raise AssertionError("two holders")
                return watch.awake

            with locks.hold(key):
                assert crew.start(wait).result() < OVERRUN

    @synchronous
    def test_a_waiter_that_gave_up_does_not_hold_up_the_next(self, target: str, key: str) -> None:
        with open_locks(target) as locks, Crew() as crew:

            def give_up() -> None:
                with pytest.raises(NotAcquired):
                    with locks.hold(key, wait=0.1):
                        raise AssertionError("two holders")

            def wait() -> bool:
                with locks.hold(key):
                    return True

            with locks.hold(key):
                gone = crew.start(give_up)
                until_waiting(locks, key, unless=gone)
                patient = crew.start(wait)
                gone.result()
            assert patient.result()

    # Skipping

    @synchronous
    def test_a_busy_try_gives_none_and_runs_the_body(self, target: str, key: str) -> None:
        with open_locks(target) as locks, Crew() as crew:

            def body_fails() -> None:
                with locks.try_hold(key) as held:
                    assert held is None
                    raise SomethingWrong

            with locks.hold(key):
                with pytest.raises(SomethingWrong):
                    crew.start(body_fails).result()
            with locks.try_hold(key) as held:
                assert held is not None
                assert not crew.start(is_free, locks, key).result()

    # Re-entry

    @synchronous
    def test_re_entry_is_an_error_at_once_and_the_outer_lock_stays(self, target: str, key: str) -> None:
        with open_locks(target) as locks, open_locks(target) as others, Crew() as crew:
            with locks.hold(key) as held:
                for client in (locks, others):
                    with pytest.raises(WouldDeadlock):
                        with client.hold(key):
                            raise AssertionError("two holders")
                    with client.try_hold(key) as again:
                        assert again is None
                held.check()
                assert not crew.start(is_free, others, key).result()

    @synchronous
    def test_work_that_is_spawned_in_a_block_is_not_a_re_entry(self, target: str, key: str) -> None:
        with open_locks(target) as locks, Crew() as crew:

            def wait() -> bool:
                with locks.hold(key):
                    return True

            with locks.hold(key):
                spawned = crew.start(wait)
                until_waiting(locks, key)
                assert not spawned.done
            assert spawned.result()
