"""One turn at a time in each conversation: what a block promises."""

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio
from member import Member, until, until_waiting

from holdfast import (
    AsyncHeld,
    AsyncLocks,
    InvalidOption,
    LockLost,
    NotAcquired,
    SessionBusyError,
    SessionLock,
    Unsupported,
    WouldDeadlock,
)
from holdfast.testing import PATIENCE, Stopwatch

NewMember = Callable[[str], Member]


def run(test: Any) -> None:
    asyncio.run(asyncio.wait_for(test, 3 * PATIENCE))


# The two tests of the document that this lock was described in.


def test_concurrent_requests_serialized(url: str, session_key: str, new_member: NewMember, tmp_path: Path) -> None:
    path = tmp_path / "results"
    members = [new_member(url) for _ in range(3)]

    async def main() -> None:
        async with SessionLock(url) as lock:
            async with lock.acquire(session_key):  # until all of them wait
                for member in members:
                    member.send("append", session_key, str(path), 10)
                await until_waiting(lock, session_key, len(members))
            for member in members:
                assert await asyncio.to_thread(member.answer) == "done"

    run(main())
    results = path.read_text().splitlines()
    assert len(results) == 2 * 10 * len(members)
    for start, end in zip(results[::2], results[1::2], strict=True):
        assert start.startswith("start") and end == start.replace("start", "end")
    assert len(set(results)) == 2 * len(members)


def test_lock_auto_releases_on_timeout(url: str, session_key: str, new_member: NewMember) -> None:
    member = new_member(url)

    async def main() -> None:
        async with SessionLock(url) as lock:
            watch = Stopwatch()
            before = await member.ask_async("acquire", session_key, 0)  # for 1 s, if it is not renewed
            member.kill()
            async with lock.acquire(session_key) as acquired:
                assert acquired and acquired.fence > before
                assert watch.elapsed > 0.95 and watch.awake < 3

    run(main())


# Waiting


def test_a_blocking_timeout_of_0_tries_once(url: str, session_key: str) -> None:
    async def main() -> None:
        async with SessionLock(url, blocking_timeout=60) as lock, SessionLock(url) as other:
            async with lock.acquire(session_key, 0) as acquired:
                assert isinstance(acquired, AsyncHeld)
                watch = Stopwatch()
                async with other.acquire(session_key, blocking_timeout=0) as second:
                    assert not second
                with pytest.raises(SessionBusyError) as caught:
                    await asyncio.create_task(other.hold(session_key, 0).__aenter__())
                assert watch.awake < 2
                assert caught.value.session_key == session_key and isinstance(caught.value, NotAcquired)

    run(main())


def test_the_block_runs_with_none_when_the_time_has_passed(url: str, session_key: str, new_member: NewMember) -> None:
    member = new_member(url)

    async def main() -> None:
        await member.take_for_long(session_key)
        async with SessionLock(url, blocking_timeout=0.3) as lock:
            assert await lock.is_locked(session_key)  # and it is reached: that may take longer
            watch = Stopwatch()
            with pytest.raises(KeyError, match="of the body"):
                async with lock.acquire(session_key) as acquired:
                    assert acquired is None
                    assert watch.elapsed >= 0.3 and watch.awake < 2
                    raise KeyError("of the body")
            assert await lock.is_locked(session_key)

    run(main())


def test_waiters_are_served_in_order_and_a_dead_one_does_not_hold_up_the_next(
    url: str, session_key: str, new_member: NewMember
) -> None:
    first, last = new_member(url), new_member(url)

    async def main() -> None:
        served: list[int] = []

        async with SessionLock(url) as lock:

            async def wait(number: int) -> None:
                async with lock.acquire(session_key, PATIENCE) as acquired:
                    assert acquired
                    served.append(number)

            tasks = []
            async with lock.acquire(session_key) as acquired:
                assert acquired
                first.send("acquire", session_key, PATIENCE)
                await until_waiting(lock, session_key, 1)
                for number in range(5):
                    tasks.append(asyncio.create_task(wait(number)))
                    await until_waiting(lock, session_key, number + 2)
                last.send("acquire", session_key, PATIENCE)
                await until_waiting(lock, session_key, 7)
                first.kill()
            watch = Stopwatch()
            await asyncio.gather(*tasks)
            assert served == list(range(5))
            assert await asyncio.to_thread(last.answer) > acquired.fence
            assert watch.awake < 2  # not the lease of the dead one, nor one poll for each
            assert await last.ask_async("leave") == "left"

    run(main())


def test_300_cancelled_waiters_leave_nothing_behind(redis_url: str, session_key: str, db: Any) -> None:
    async def main() -> None:
        async with SessionLock(redis_url) as lock:

            async def wait() -> None:
                async with lock.acquire(session_key, PATIENCE):
                    raise AssertionError("two holders")

            async with lock.acquire(session_key):
                tasks = [asyncio.create_task(wait()) for _ in range(300)]
                for number, task in enumerate(tasks):
                    if number % 3 == 0:
                        await asyncio.sleep(0)  # some before they have asked, some amid, some in the queue
                    task.cancel()
                outcomes = await asyncio.gather(*tasks, return_exceptions=True)
                assert all(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes)
                assert not lock.held.keys() - {lock.key(session_key)}
            left = f"{{sesslock:{session_key}}}:queue"
            await until(lambda: not db.exists(left, f"sesslock:{session_key}"), "a lock or a queue was left behind")

    run(main())


# Extending


@pytest.mark.parametrize("times", [1000])
def test_extending_sets_the_time_and_never_adds_up(redis_url: str, session_key: str, db: Any, times: int) -> None:
    async def main() -> None:
        async with SessionLock(redis_url, lock_timeout=60) as lock:
            async with lock.acquire(session_key) as held:
                assert held
                for _ in range(times):
                    assert await lock.extend(session_key, additional_time=30)
                assert 20_000 < db.pttl(f"sesslock:{session_key}") <= 30_000
                assert 20 < held.remaining <= 30
                assert await lock.extend(f"sesslock:{session_key}", 90)
                assert 60_000 < db.pttl(f"sesslock:{session_key}") <= 90_000

    run(main())


def test_only_the_holder_can_extend(url: str, session_key: str, new_member: NewMember) -> None:
    member = new_member(url)

    async def main() -> None:
        async with SessionLock(url) as lock, SessionLock(url) as other:
            assert not await lock.extend(session_key)
            async with lock.acquire(session_key) as held:
                assert held
                assert await asyncio.create_task(lock.extend(session_key, 20))  # work that the body has spawned
                assert held.remaining <= 20
                assert not await other.extend(session_key, 60)
                assert not await member.ask_async("extend", session_key, 60)
                assert held.remaining <= 20
            assert not await lock.extend(session_key)
            with pytest.raises(InvalidOption, match="additional_time"):
                await lock.extend(session_key, 0)

    run(main())


def test_an_extension_of_what_was_lost_says_no(url: str, session_key: str, new_member: NewMember) -> None:
    member = new_member(url)

    async def main() -> None:
        async with SessionLock(url) as lock:
            with pytest.raises(LockLost):
                async with lock.acquire(session_key, on_lost=lambda held: None) as held:
                    assert held
                    task = asyncio.create_task(_take_away(lock, session_key, member))
                    try:
                        await asyncio.sleep(PATIENCE)
                    except asyncio.CancelledError:
                        await task
                        assert not await lock.extend(session_key)
                        raise
            assert await member.ask_async("extend", session_key, 60)

    async def _take_away(lock: SessionLock, session_key: str, member: Member) -> None:
        async with SessionLock(url) as operator:
            await operator.force_release(session_key)
        await member.take_for_long(session_key)

    run(main())


# Ending


def test_a_body_longer_than_the_lease_keeps_its_lock(url: str, session_key: str) -> None:
    async def main() -> None:
        async with SessionLock(url, lock_timeout=3) as lock, SessionLock(url) as other:
            async with lock.acquire(session_key) as held:
                assert held
                ends = time.monotonic() + 4
                while time.monotonic() < ends:
                    async with other.acquire(session_key, 0) as second:
                        assert not second
                    await asyncio.sleep(0.1)
                held.check()

    run(main())


def test_a_paused_holder_is_told_and_does_not_touch_its_successor(
    url: str, session_key: str, new_member: NewMember
) -> None:
    member = new_member(url)

    async def main() -> None:
        before = await member.ask_async("acquire", session_key, 0)
        member.stop()
        async with SessionLock(url) as lock, SessionLock(url) as third:
            async with lock.acquire(session_key, PATIENCE) as held:  # when its lease has run out
                assert held and held.fence > before
                member.go_on()
                assert not await member.ask_async("extend", session_key, 60)
                assert await member.ask_async("leave") == "LockLost"
                held.check()
                async with third.acquire(session_key, 0) as second:
                    assert not second

    run(main())


def test_a_loss_cancels_the_body_and_is_raised_at_its_end(url: str, session_key: str) -> None:
    async def main() -> None:
        cancelled = False
        async with SessionLock(url) as lock, SessionLock(url) as operator:
            with pytest.raises(LockLost):
                async with lock.acquire(session_key):
                    forced = asyncio.create_task(operator.force_release(session_key))
                    try:
                        await asyncio.sleep(PATIENCE)
                    except asyncio.CancelledError:
                        cancelled = True
                        raise
            assert cancelled and await forced
            async with lock.acquire(session_key, 0) as again:
                assert again

    run(main())


def test_a_release_that_finds_the_lock_gone_says_so(redis_url: str, session_key: str, db: Any) -> None:
    async def main() -> None:
        async with SessionLock(redis_url) as lock:
            with pytest.raises(LockLost):
                async with lock.acquire(session_key):
                    db.delete(f"sesslock:{session_key}")
            with pytest.raises(LockLost):
                async with lock.acquire(session_key):
                    db.set(f"sesslock:{session_key}", "another's", px=60_000)
            assert db.get(f"sesslock:{session_key}") == "another's"
            db.delete(f"sesslock:{session_key}")

    run(main())


def test_a_forced_release_is_told_to_the_holder_and_put_on_record(
    url: str, session_key: str, new_member: NewMember, caplog: pytest.LogCaptureFixture
) -> None:
    member = new_member(url)

    async def main() -> None:
        async with SessionLock(url) as lock:
            assert not await lock.force_release(session_key)
            fence = await member.take_for_long(session_key)
            caplog.clear()
            with caplog.at_level(logging.WARNING, "holdfast"):
                assert await lock.force_release(session_key, by="ada", reason="stuck since noon")
            for told in (
                f"key=sesslock:{session_key}",
                "'ada'",
                "'stuck since noon'",
                f"fence {fence}",
                "released=True",
            ):
                assert told in caplog.text
            assert not await lock.is_locked(session_key)
            assert await member.ask_async("leave") == "LockLost"

    run(main())


# What it is made with


def test_a_client_of_the_application_lends_its_address_and_keeps_its_connections(
    redis_url: str, session_key: str, db: Any
) -> None:
    async def main() -> None:
        client = redis.asyncio.Redis.from_url(redis_url, decode_responses=True, client_name="app", max_connections=1)
        async with SessionLock(client) as lock, client:
            assert await client.ping()
            async with lock.acquire(session_key) as acquired:
                assert acquired and await client.get(f"sesslock:{session_key}")
                assert sum(found["name"] == "app" for found in db.client_list()) == 1
            assert await client.ping()  # its own, and open

    run(main())


def test_defaults_and_mistakes(redis_url: str) -> None:
    lock = SessionLock(redis_url)
    assert (lock.lock_timeout, lock.blocking_timeout, lock.key_prefix) == (30, 5.0, "sesslock")
    lock = SessionLock(redis_url, 10, 0)
    assert (lock.lock_timeout, lock.blocking_timeout) == (10, 0)
    for mistake, says in (
        ({"lock_timeout": 0}, "lock_timeout"),
        ({"blocking_timeout": -1}, "blocking_timeout"),
        ({"blocking_timeout": "5"}, "blocking_timeout"),
        ({"unavailable": "ignore"}, "refuse"),
    ):
        with pytest.raises(InvalidOption, match=says):
            SessionLock(redis_url, **mistake)  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match=r"session\.lock\.url"):
        SessionLock()
    with pytest.raises(InvalidOption, match="is no redis"):
        SessionLock(42)
    for url in ("memory://x", "file:///tmp", "postgresql:///x"):
        with pytest.raises(Unsupported, match="leases"):
            SessionLock(AsyncLocks.from_url(url))


def test_re_entry_is_an_error_and_not_a_hang(url: str, session_key: str) -> None:
    async def main() -> None:
        async with SessionLock(url) as lock, SessionLock(url) as other:
            async with lock.acquire(session_key) as held:
                assert held
                with pytest.raises(WouldDeadlock):
                    await other.acquire(session_key).__aenter__()
                held.check()

    run(main())
