"""What becomes of a turn when the server of its lock cannot be reached; what is counted; who is healthy."""

import asyncio
import logging
import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from member import Member, until_waiting
from prometheus_client import REGISTRY, generate_latest

from holdfast import (
    AsyncLocks,
    BackendUnavailable,
    LockError,
    NotAcquired,
    SessionLock,
    WouldDeadlock,
    build_session_key,
    check_session_lock_health,
    settings,
)
from holdfast.embedded import start_redis
from holdfast.testing import PATIENCE, Stopwatch


def run(test: Any) -> None:
    asyncio.run(asyncio.wait_for(test, 3 * PATIENCE))


def counted(name: str, **labels: str) -> float:
    return REGISTRY.get_sample_value(name, labels) or 0.0


@pytest.fixture
def nowhere(tmp_path: Path) -> str:
    return f"unix://{tmp_path}/no-such-socket"


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[Any]:
    with start_redis(tmp_path / "server", options={"appendonly": "no", "save": ""}) as server:
        yield server


def server_pid(url: str) -> int:
    import redis

    with redis.Redis.from_url(url) as connection:
        return int(connection.info("server")["process_id"])


def test_an_outage_refuses_the_turn(nowhere: str, session_key: str) -> None:
    async def main() -> None:
        before = counted("session_lock_failure_total", reason="redis_error")
        async with SessionLock(nowhere) as lock:
            for attempt in (lock.acquire(session_key, PATIENCE), lock.hold(session_key, 0)):
                with pytest.raises(BackendUnavailable) as caught:
                    async with attempt:
                        raise AssertionError("ran without a lock")
                assert isinstance(caught.value, LockError) and not isinstance(caught.value, NotAcquired)
            with pytest.raises(BackendUnavailable):
                await lock.acquire_detached(session_key, 0, owner="turn-1")
            assert counted("session_lock_failure_total", reason="redis_error") == before + 3

    run(main())


def test_a_turn_that_proceeds_runs_once_and_it_shows(
    nowhere: str, session_key: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        before = counted("session_lock_unprotected_total")
        ran = 0
        async with SessionLock(nowhere, blocking_timeout=PATIENCE, unavailable="proceed") as lock:
            with caplog.at_level(logging.WARNING, "holdfast"):
                async with lock.acquire(session_key) as held:
                    ran += 1
                    assert held and not held.protected
                    assert not await lock.extend(session_key)
            assert f"action=unprotected key=sesslock:{session_key}" in caplog.text
            with pytest.raises(BackendUnavailable):
                await lock.acquire(session_key, unavailable="refuse").__aenter__()
            with pytest.raises(ConnectionError, match="of the body"):  # not taken for an outage of the lock's server
                async with lock.acquire(session_key):
                    ran += 1
                    raise ConnectionError("of the body")
        assert ran == 2 and lock.locks.unprotected == 2
        assert counted("session_lock_unprotected_total") == before + 2

    run(main())


def test_an_outage_in_the_middle_does_not_run_the_turn_again(own_server: Any, session_key: str) -> None:
    async def main() -> None:
        ran = 0
        async with SessionLock(own_server.url, unavailable="proceed") as lock:
            async with lock.acquire(session_key) as held:
                ran += 1
                assert held and held.protected
                os.kill(server_pid(own_server.url), signal.SIGKILL)
        assert ran == 1  # and no error at the end, which would have it run again

    run(main())


# Metrics


def test_what_is_counted_names_no_conversation(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_SESSION_LOCK_CHANNELS", "web, kiosk")
    settings.forget()
    secret = "zebra"  # letters: any digits may be those of a time
    name = "session_lock_acquire_duration_seconds_count"
    patterns = {"web": "*:*:*:web", "kiosk": "*:*:*:kiosk", "okapi": "*:*:*:*", f"x{secret}": "*:*:*:*"}
    before = {pattern: counted(name, session_key_pattern=pattern) for pattern in {*patterns.values(), "*"}}

    async def main() -> None:
        async with SessionLock(redis_url) as lock:
            for channel in patterns:
                async with lock.acquire(build_session_key("t", "a", secret, channel)):
                    pass
            async with lock.acquire(f"by-hand:{secret}"):
                pass

    run(main())
    grown = {pattern: counted(name, session_key_pattern=pattern) - before[pattern] for pattern in before}
    assert grown == {"*:*:*:web": 1, "*:*:*:kiosk": 1, "*:*:*:*": 2, "*": 1}
    told = generate_latest().decode()
    assert secret not in told and "okapi" not in told
    labels = set(re.findall(r"session_lock_\w+{([a-z_]+)=", told))
    assert labels <= {"session_key_pattern", "reason", "le"}


def test_waits_and_failures_are_counted(url: str, session_key: str) -> None:
    def waits() -> float:
        return counted("session_lock_wait_total")

    def failures(reason: str) -> float:
        return counted("session_lock_failure_total", reason=reason)

    async def main() -> None:
        async with SessionLock(url) as lock:
            began = (waits(), failures("timeout"), failures("cancelled"), failures("refused"))

            async def wait(seconds: float) -> bool:
                async with lock.acquire(session_key, seconds) as acquired:
                    return bool(acquired)

            async with lock.acquire(session_key):
                assert not await asyncio.create_task(wait(0))
                assert (waits(), failures("timeout")) == (began[0], began[1] + 1)  # a try does not wait
                assert not await asyncio.create_task(wait(1.5))  # in which the server must have said that it is busy
                with pytest.raises(WouldDeadlock):
                    await wait(1)
                waiter, leaver = asyncio.create_task(wait(PATIENCE)), asyncio.create_task(wait(PATIENCE))
                await until_waiting(lock, session_key, 2)
                leaver.cancel()
                await asyncio.wait({leaver})
            assert await waiter
            assert waits() == began[0] + 2
            assert failures("timeout") == began[1] + 2
            assert (failures("cancelled"), failures("refused")) == (began[2] + 1, began[3] + 1)

    run(main())


def test_without_prometheus_nothing_is_counted_and_all_goes_on(redis_url: str) -> None:
    import subprocess
    import sys

    program = (
        "import sys, asyncio; sys.modules['prometheus_client'] = None\n"
        "from holdfast import SessionLock\n"
        "async def main():\n"
        f"    async with SessionLock({redis_url!r}) as lock, lock.acquire('no:metrics') as acquired: assert acquired\n"
        "asyncio.run(main())"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True)


# Health


def test_parallel_probes_of_one_process_all_say_healthy(url: str) -> None:
    async def main() -> None:
        async with SessionLock(url) as lock:
            answers = await asyncio.gather(*(check_session_lock_health(lock, timeout=PATIENCE) for _ in range(20)))
            assert answers == [True] * 20
            assert not [held for held in await lock.locks.holders() if "health" in held.key and held.pid == os.getpid()]

    run(main())


def test_a_prober_that_died_or_stands_still_makes_nobody_unhealthy(
    url: str, new_member: Callable[[str], Member]
) -> None:
    async def main() -> None:
        async with SessionLock(url) as lock:
            dead, paused = new_member(url), new_member(url)
            for member in (dead, paused):
                assert await member.ask_async("probe for ever") == "amid"
            dead.kill()
            paused.stop()
            left = [held for held in await lock.locks.holders() if "health" in held.key]
            assert len(left) == 2  # and there they are for seconds
            assert await check_session_lock_health(lock, timeout=5)

    run(main())


def test_an_outage_is_unhealthy_and_said_in_time(
    own_server: Any, nowhere: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with SessionLock(nowhere) as lock:
            assert await check_session_lock_health(lock) is False
            assert "action=session_lock_unhealthy" in caplog.text
        lock = SessionLock(own_server.url)
        assert await check_session_lock_health(lock, timeout=PATIENCE) is True
        server = server_pid(own_server.url)
        os.kill(server, signal.SIGSTOP)
        try:
            watch = Stopwatch()
            assert await check_session_lock_health(lock, timeout=0.3) is False
            assert watch.awake < 2
        finally:
            os.kill(server, signal.SIGCONT)
        holder, watch = lock.locks.holder, Stopwatch()

        async def stall(*key: Any) -> Any:
            os.kill(server, signal.SIGSTOP)
            return await holder(*key)

        lock.locks.holder = stall  # type: ignore[method-assign]  # the lock is taken, and then there is no answer any more
        try:
            assert await check_session_lock_health(lock, timeout=0.3) is False
            assert watch.awake < 2
        finally:
            os.kill(server, signal.SIGCONT)
        del lock.locks.holder
        assert await check_session_lock_health(lock, timeout=PATIENCE) is True
        await lock.close()

    run(main())


def test_a_server_that_takes_locks_and_forgets_them_is_unhealthy(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with AsyncLocks.from_url(redis_url) as locks:

            async def nobody(*key: object) -> None:
                return None

            monkeypatch.setattr(locks, "holder", nobody)
            assert await check_session_lock_health(SessionLock(locks)) is False

    run(main())


def test_without_a_lock_the_configured_ones_are_asked(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.session import health

    monkeypatch.setattr(health, "_configured", None)
    monkeypatch.setenv("HOLDFAST_SESSION_LOCK_URL", url)
    settings.forget()
    assert asyncio.run(check_session_lock_health(timeout=PATIENCE)) is True
