"""What engines promise whose locks are leases."""

from __future__ import annotations

from math import inf, nan

import pytest

from ...errors import InvalidOption, NotHeld
from ..child import Child
from ..stopwatch import Stopwatch
from ..target import LASTING, PATIENCE, TTL
from .crew import Crew, asynchronous, open_locks, pause
from .part import OVERRUN, AsyncPart, is_free


class AsyncLeases(AsyncPart):
    """For engines that are ``expiring``."""

    @asynchronous
    async def test_a_body_longer_than_its_lease_keeps_its_lock(self, target: str, key: str) -> None:
        async with open_locks(target) as locks, Crew() as crew:
            async with locks.hold(key, ttl=LASTING) as held:
                for _ in range(10):
                    await pause(LASTING / 7)
                    assert 0 < held.remaining <= LASTING
                    assert not await crew.start(is_free, locks, key).result()

    @asynchronous
    async def test_a_killed_holders_lock_is_free_when_its_lease_is_over_and_not_before(
        self, target: str, key: str
    ) -> None:
        async with open_locks(target) as locks:
            child = Child(target)
            try:
                since_before_the_hold = Stopwatch()
                before = int(child.ask("hold", key).removeprefix("held "))
            finally:
                child.kill()
            since_the_kill = Stopwatch()
            async with locks.hold(key) as held:
                assert since_before_the_hold.elapsed > TTL * 0.95  # the server's clock is not quite ours
                assert since_the_kill.awake < TTL + OVERRUN
                assert held.fence > before

    @asynchronous
    async def test_a_paused_holder_finds_out_and_touches_nobody(self, target: str, key: str) -> None:
        async with open_locks(target) as locks, Crew() as crew:
            child = Child(target)
            try:
                before = int(child.ask("hold", key).removeprefix("held "))
                child.stop()
                async with locks.hold(key, wait=PATIENCE) as held:
                    assert held.fence > before
                    child.go_on()
                    assert child.ask("state") == "lost"
                    assert child.ask("release") == "lost"
                    held.check()
                    assert not await crew.start(is_free, locks, key).result()
            finally:
                child.kill()

    @asynchronous
    async def test_a_thousand_extensions_do_not_add_up(self, target: str, key: str) -> None:
        async with open_locks(target) as locks:
            child = Child(target, ttl=LASTING)
            try:
                child.ask("hold", key)
                assert child.ask("extend", "1000", str(LASTING)) == "extended"
            finally:
                child.kill()
            watch = Stopwatch()
            async with locks.hold(key):  # in time, or NotAcquired
                assert watch.awake < LASTING + OVERRUN

    @asynchronous
    async def test_an_extension_says_how_long_the_lease_is_from_now_on(self, target: str, key: str) -> None:
        async with open_locks(target) as locks:
            async with locks.hold(key, ttl=LASTING) as held:
                await held.extend(60)
                assert 60 - PATIENCE < held.remaining <= 60
                await held.extend()
                assert 0 < held.remaining <= LASTING
                await pause(LASTING * 1.2)
                held.check()

    @asynchronous
    async def test_a_lease_that_makes_no_sense_is_refused(self, target: str, key: str) -> None:
        async with open_locks(target) as locks:
            for ttl in (0, -1, inf, nan, "30"):
                with pytest.raises(InvalidOption, match="ttl"):
                    locks.hold(key, ttl=ttl)  # type: ignore[arg-type]
            async with locks.hold(key) as held:
                assert 10 < held.remaining <= 30
                with pytest.raises(InvalidOption, match="ttl"):
                    await held.extend(0)
                held.check()

    @asynchronous
    async def test_a_detached_lock_runs_out(self, target: str, key: str) -> None:
        async with open_locks(target) as locks:
            async with locks.hold(key, ttl=LASTING) as held:
                await pause(LASTING / 4)
                watch = Stopwatch()
                token = await held.detach()
            async with locks.hold(key) as next_one:
                assert watch.elapsed > LASTING * 0.95 and watch.awake < LASTING + OVERRUN
                assert next_one.fence > held.fence
                with pytest.raises(NotHeld):
                    await locks.attach(token).__aenter__()
                next_one.check()

    @asynchronous
    async def test_a_detached_lock_is_extended_by_its_token_and_stays_detached(self, target: str, key: str) -> None:
        async with open_locks(target) as locks:
            async with locks.hold(key, ttl=PATIENCE) as held:
                token = await held.detach()
            watch = Stopwatch()
            for _ in range(10):
                watch.restart()
                assert await locks.extend_detached(token, LASTING)  # sets, and never adds up
            async with locks.hold(key):
                assert watch.elapsed > LASTING * 0.95 and watch.awake < LASTING + OVERRUN
                assert not await locks.extend_detached(token, LASTING)
            assert await is_free(locks, key)

    @asynchronous
    async def test_a_lock_is_detached_in_one_process_and_attached_in_another(self, target: str, key: str) -> None:
        async with open_locks(target) as locks:
            child = Child(target, ttl=PATIENCE)
            try:
                async with locks.hold(key, ttl=PATIENCE) as held:
                    token = await held.detach()
                assert int(child.ask("attach", token).removeprefix("held ")) >= held.fence
                with pytest.raises(NotHeld):
                    await locks.attach(token).__aenter__()
                assert not await is_free(locks, key)
                token = child.ask("detach")
                async with locks.attach(token) as taken_up:
                    assert taken_up.fence >= held.fence
                assert await is_free(locks, key)
            finally:
                child.end()

    @asynchronous
    async def test_an_older_handle_in_another_process_is_told_when_its_owner_takes_the_lock_anew(
        self, target: str, key: str
    ) -> None:
        async with open_locks(target) as locks:
            child = Child(target)
            try:
                before = int(child.ask("hold", key, "turn-17").removeprefix("held "))
                async with locks.hold(key, owner="turn-17", wait=0) as held:
                    assert held.fence > before
                    watch = Stopwatch()
                    while child.ask("state") != "lost":
                        assert watch.awake < OVERRUN, "it was not told"
                        await pause(0.005)
                    assert child.ask("release") == "lost"
                    held.check()
            finally:
                child.kill()
            assert await is_free(locks, key)
