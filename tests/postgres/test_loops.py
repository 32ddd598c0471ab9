"""Event loops drive their own round trips. What becomes of these when a loop is closed, kept busy, or in the way."""

import asyncio
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from eyes import Server, wait_until

from addresses import with_option
from holdfast import AsyncLocks, LockLost, Locks
from holdfast.engines.postgres.hub import Hub
from holdfast.testing import PATIENCE, Stopwatch

NAMESPACE = 21


@pytest.fixture
def url(url: str) -> str:
    """An address that no other test has: connections of its own, which no loop has claimed yet."""
    return with_option(url, f"application_name=holdfast-loops-{uuid4().hex[:8]}")


def hub_of(locks: Locks | AsyncLocks) -> Hub:
    return locks._client.engine._hub  # type: ignore[attr-defined,no-any-return]


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


async def warm(locks: AsyncLocks) -> int:
    """Has the loop claim its connection. The backend of it."""
    async with locks.hold(NAMESPACE, 0):
        pass
    loop = asyncio.get_running_loop()
    (pid,) = [connection.pid for connection in hub_of(locks).shared if connection.home is loop]
    return pid


def in_flight(hub: Hub) -> bool:
    return any(connection.pilot and connection.pilot.serves and connection.trip for connection in hub.shared)


def test_a_task_makes_its_round_trips_in_its_own_thread(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with AsyncLocks.from_url(url) as locks:
            await warm(locks)
            hub = hub_of(locks)
            driven: list[object] = []
            monkeypatch.setattr(hub.courier, "drive", driven.append)
            monkeypatch.setattr(hub, "look_at_idle_connections", lambda: True)  # or it helps when the server is slow

            async def hold(entity: int) -> None:
                for _ in range(entity):  # so that many ask while a round trip is under way
                    await asyncio.sleep(0)
                async with locks.hold(NAMESPACE, entity):
                    pass

            await asyncio.gather(*(hold(entity) for entity in range(100)))
            assert not driven

    asyncio.run(main())


def test_tasks_that_ask_in_one_turn_of_the_loop_go_out_together(url: str) -> None:
    async def main() -> None:
        async with AsyncLocks.from_url(url) as locks:
            await warm(locks)
            (connection,) = [c for c in hub_of(locks).shared if c.pilot is not None]
            pilot = connection.pilot
            assert pilot is not None

            async def hold(entity: int) -> None:
                async with locks.hold(NAMESPACE, entity):
                    pass

            before = pilot.steps
            await asyncio.gather(*(hold(entity) for entity in range(200)))
            assert pilot.steps - before < 40

    asyncio.run(main())


def test_what_a_closed_loop_left_half_done_is_brought_to_its_end(url: str, server: Server) -> None:
    locks = AsyncLocks.from_url(url)
    loop = asyncio.new_event_loop()
    pid = loop.run_until_complete(warm(locks))

    async def ask() -> None:
        async with locks.hold(NAMESPACE, 1):
            raise AssertionError("the loop was closed before")

    with frozen(pid):
        task = loop.create_task(ask())
        wait_until(lambda: loop.run_until_complete(asyncio.sleep(0)) or in_flight(hub_of(locks)), "nothing was sent")
        loop.close()
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        del task, ask
    with Locks.from_url(url) as others:  # on the same hub
        with others.hold(NAMESPACE, 1, wait=PATIENCE):
            assert server.holder(1)
        connection = next(c for c in hub_of(others).shared if c.pid == pid)
        wait_until(lambda: not connection.duty, "the closed loop still has the duty")

    asyncio.run(locks.close())


def test_a_loop_that_is_kept_busy_holds_up_nobody_else(url: str, server: Server) -> None:
    """Its tasks' lock is released by a thread while the loop, with a round trip under way, does something else."""
    locks, busy, done = AsyncLocks.from_url(url), threading.Event(), threading.Event()

    async def main() -> None:
        pid = await warm(locks)
        async with locks.hold(NAMESPACE, 2) as held:
            with frozen(pid):
                asking = asyncio.create_task(locks.hold(NAMESPACE, 3).__aenter__())
                while not in_flight(hub_of(locks)):  # noqa: ASYNC110
                    await asyncio.sleep(0)
            thread = threading.Thread(target=lambda: (asyncio.run(held.release()), done.set()))
            thread.start()
            busy.set()
            assert done.wait(PATIENCE)  # which keeps the loop busy
            await asyncio.to_thread(thread.join)
        await (await asking).release()
        await locks.close()

    asyncio.run(main())
    assert busy.is_set()


def test_a_blocking_call_in_a_loop_does_not_wait_for_that_loop(url: str) -> None:
    """Not even where the only connection is the loop's own, and in the middle of a round trip."""

    async def main() -> None:
        locks = AsyncLocks.from_url(url, max_connections=1)
        blocking = Locks.from_url(url, max_connections=1)
        await warm(locks)
        asking = asyncio.create_task(locks.hold(NAMESPACE, 4).__aenter__())
        while not in_flight(hub_of(locks)):  # noqa: ASYNC110
            await asyncio.sleep(0)
        assert hub_of(locks) is hub_of(blocking)
        with blocking.hold(NAMESPACE, 5, wait=PATIENCE):
            pass
        await (await asking).release()
        blocking.close()
        await locks.close()

    asyncio.run(main())


def test_a_loss_is_seen_by_the_loop_itself(url: str, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> float:
        async with AsyncLocks.from_url(url) as locks:
            watch = Stopwatch()
            await warm(locks)
            monkeypatch.setattr(hub_of(locks), "look_at_idle_connections", lambda: True)
            with pytest.raises(LockLost):
                async with locks.hold(NAMESPACE, 6):
                    pid = server.holder(6)
                    watch.restart()
                    server.terminate(pid)
                    await asyncio.sleep(PATIENCE)
            took = watch.awake
            async with locks.hold(NAMESPACE, 6):  # and the client goes on by itself
                pass
            return took

    assert asyncio.run(main()) < 1


def test_a_connection_that_is_gone_leaves_no_reader_behind_for_the_next_socket_of_its_number(
    url: str, server: Server
) -> None:
    async def main() -> None:
        locks = AsyncLocks.from_url(url)
        pid = await warm(locks)
        number = next(connection.socket for connection in hub_of(locks).shared if connection.pid == pid)
        await asyncio.to_thread(hub_of(locks).broke, *_broken(hub_of(locks), pid))
        loop, heard = asyncio.get_running_loop(), asyncio.Event()
        while not await asyncio.to_thread(_is_free, number):  # noqa: ASYNC110
            await asyncio.sleep(0)
        ours, theirs = socket.socketpair()
        with ours, theirs:
            if ours.fileno() != number:
                os.dup2(ours.fileno(), number)
            loop.add_reader(number, heard.set)
            theirs.send(b"x")
            await asyncio.wait_for(heard.wait(), PATIENCE)
            loop.remove_reader(number)
            if ours.fileno() != number:
                os.close(number)
        await locks.close()

    asyncio.run(main())


def _broken(hub: Hub, pid: int) -> tuple[Any, BaseException]:
    return next(c for c in hub.shared if c.pid == pid), psycopg.OperationalError("as if the network were gone")


def _is_free(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return True
    return False


def test_each_loop_has_a_connection_of_its_own_up_to_the_limit(url: str) -> None:
    locks = AsyncLocks.from_url(url, max_connections=3)
    started, go = threading.Barrier(5), threading.Event()

    async def work() -> None:
        async with locks.hold(NAMESPACE, threading.get_ident() % 2**31):
            started.wait()
            while not go.is_set():
                async with locks.hold(NAMESPACE, threading.get_native_id()):
                    await asyncio.sleep(0.001)

    threads = [threading.Thread(target=asyncio.run, args=(work(),)) for _ in range(4)]
    for thread in threads:
        thread.start()
    started.wait()
    try:
        wait_until(lambda: len(hub_of(locks).shared) == 3, "no further connection was opened")
        wait_until(lambda: all(not c.is_homeless for c in hub_of(locks).shared), "a connection is not used")
    finally:
        go.set()
        for thread in threads:
            thread.join()
    assert len(hub_of(locks).shared) == 3
    asyncio.run(locks.close())
