"""What engines promise whose locks are leases."""

from __future__ import annotations

import time
from math import inf, nan

import pytest

from ...errors import InvalidOption, NotHeld
from ..child import Child
from ..target import PATIENCE, TTL
from .crew import Crew, asynchronous, open_locks, pause
from .part import OVERRUN, AsyncPart, is_free


class AsyncLeases(AsyncPart):
    """For engines that are ``expiring``."""

    @asynchronous
    async def test_a_body_longer_than_its_lease_keeps_its_lock(self, target: str, key: str) -> None:
        async with open_locks(target) as locks, Crew() as crew:
            async with locks.hold(key, ttl=TTL) as held:
                for _ in range(10):
                    await pause(TTL / 4)
                    assert 0 < held.remaining <= TTL
                    assert not await crew.start(is_free, locks, key).result()

    @asynchronous
    async def test_a_killed_holders_lock_is_free_when_its_lease_is_over_and_not_before(
        self, target: str, key: str
    ) -> None:
        async with open_locks(target) as locks:
            child = Child(target)
            try:
                before = int(child.ask("hold", key).removeprefix("held "))
            finally:
                child.kill()
            killed = time.monotonic()
            assert not await is_free(locks, key)
            async with locks.hold(key) as held:
                assert time.monotonic() - killed < TTL + OVERRUN
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
            child = Child(target)
            try:
                child.ask("hold", key)
                assert child.ask("extend", "1000", str(TTL)) == "extended"
            finally:
                child.kill()
            killed = time.monotonic()
            async with locks.hold(key):  # in time, or NotAcquired
                assert time.monotonic() - killed < TTL + OVERRUN

    @asynchronous
    async def test_an_extension_says_how_long_the_lease_is_from_now_on(self, target: str, key: str) -> None:
        async with open_locks(target) as locks:
            async with locks.hold(key, ttl=TTL) as held:
                await held.extend(60)
                assert 59 < held.remaining <= 60
                await held.extend()
                assert 0 < held.remaining <= TTL
                await pause(TTL * 1.5)
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
            async with locks.hold(key, ttl=TTL) as held:
                await pause(TTL / 2)
                token = await held.detach()
                detached = time.monotonic()
            async with locks.hold(key) as next_one:
                assert TTL * 0.7 < time.monotonic() - detached < TTL + OVERRUN
                assert next_one.fence > held.fence
                with pytest.raises(NotHeld):
                    await locks.attach(token).__aenter__()
                next_one.check()

    @asynchronous
    async def test_a_detached_lock_is_extended_by_its_token_and_stays_detached(self, target: str, key: str) -> None:
        async with open_locks(target) as locks:
            async with locks.hold(key, ttl=PATIENCE) as held:
                token = await held.detach()
            for _ in range(10):
                assert await locks.extend_detached(token, TTL)  # sets, and never adds up
            extended = time.monotonic()
            async with locks.hold(key):
                assert TTL * 0.7 < time.monotonic() - extended < TTL + OVERRUN
                assert not await locks.extend_detached(token, TTL)
            assert await is_free(locks, key)

    @asynchronous
    async def test_a_lock_is_detached_in_one_process_and_attached_in_another(self, target: str, key: str) -> None:
        async with open_locks(target) as locks:
            child = Child(target)
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
                    for _ in range(int(OVERRUN / 0.01)):  # told, not found out by the next renewal
                        if child.ask("state") == "lost":
                            break
                        await pause(0.005)
                    assert child.ask("release") == "lost"
                    held.check()
            finally:
                child.kill()
            assert await is_free(locks, key)
