"""PostgreSQL's bug 17686: a wait that is interrupted after its grant fails and leaves the lock held. Not here."""

import asyncio
import os
import signal
import threading
import time
from typing import Any

import psycopg
import pytest
from eyes import Server, wait_until

from holdfast import AsyncLocks, Locks, NotAcquired
from holdfast.testing import PATIENCE


class Waiting:
    """A thread that waits for (1, key) with its backend known."""

    def __init__(self, url: str, server: Server, key: int, wait: float) -> None:
        self.locks = Locks.from_url(url)
        self.got = threading.Event()
        self._begin(key, wait)

        def seen() -> list[int]:
            if not self.thread.is_alive():  # the machine stood still until the wait was over: once more
                self._begin(key, wait)
            return server.waiting(key)

        (self.backend,) = wait_until(seen, "nobody stood in the server's queue")

    def _begin(self, key: int, wait: float) -> None:
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._wait, args=(key, wait))
        self.thread.start()

    def _wait(self, key: int, wait: float) -> None:
        try:
            with self.locks.hold(1, key, wait=wait):
                self.got.set()
        except BaseException as error:
            self.error = error

    def end(self) -> None:
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive()
        self.locks.close()


def grant_while_stopped(backend: int, db: psycopg.Connection[Any], key: int) -> None:
    """Has the server grant the lock to a backend that cannot notice: what interrupts it next comes after the grant."""
    os.kill(backend, signal.SIGSTOP)
    assert db.execute("select pg_advisory_unlock(1, %s)", (key,)).fetchone() == (True,)


def test_a_lock_timeout_after_the_grant_leaves_nothing(url: str, db: psycopg.Connection[Any], server: Server) -> None:
    key = 17686
    db.execute("select pg_advisory_lock(1, %s)", (key,))
    waiting = Waiting(url, server, key, wait=2)  # time to be seen in the queue
    try:
        grant_while_stopped(waiting.backend, db, key)
        waiting.thread.join(PATIENCE)
    finally:
        os.kill(waiting.backend, signal.SIGCONT)
    waiting.end()
    assert isinstance(waiting.error, NotAcquired)
    wait_until(lambda: not server.advisory_locks(key), "a phantom holds the lock")
    assert db.execute("select pg_try_advisory_lock(1, %s)", (key,)).fetchone() == (True,)
    db.execute("select pg_advisory_unlock(1, %s)", (key,))


def test_a_cancel_after_the_grant_leaves_nothing_and_the_wait_goes_on(
    url: str, db: psycopg.Connection[Any], server: Server
) -> None:
    key = 17687
    db.execute("select pg_advisory_lock(1, %s)", (key,))
    waiting = Waiting(url, server, key, wait=PATIENCE)
    try:
        grant_while_stopped(waiting.backend, db, key)
        server.cancel(waiting.backend)
    finally:
        os.kill(waiting.backend, signal.SIGCONT)
    waiting.end()
    assert waiting.error is None, "a cancel of the statement is not an end of the wait"
    assert waiting.got.is_set()


def test_a_task_cancelled_after_the_grant_leaves_nothing(url: str, db: psycopg.Connection[Any], server: Server) -> None:
    key = 17688

    async def main() -> None:
        async with AsyncLocks.from_url(url) as locks:
            await asyncio.to_thread(db.execute, "select pg_advisory_lock(1, %s)", (key,))
            task = asyncio.create_task(locks.hold(1, key, wait=PATIENCE).__aenter__())
            await asyncio.to_thread(wait_until, lambda: server.waiting(key), "nobody stood in the server's queue")
            (backend,) = server.waiting(key)
            try:
                grant_while_stopped(backend, db, key)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            finally:
                os.kill(backend, signal.SIGCONT)
            await asyncio.to_thread(wait_until, lambda: not server.advisory_locks(key), "a phantom holds the lock")

    asyncio.run(main())


def contend(url: str, timeouts: int, threads: int = 12) -> int:
    """Contended 1 ms timeouts, as many as asked for. Returns how many there were."""
    clients = [Locks.from_url(url), Locks.from_url(url, max_connections=1), Locks.from_url(url, max_waiting=2)]
    for client in clients:
        with client.hold(1, 17689):  # connects, so that the time limits are those of the lock
            pass
    counts = [0] * threads

    def work(number: int) -> None:
        locks = clients[number % len(clients)]
        while sum(counts) < timeouts:
            try:
                with locks.hold(1, 17689, wait=0.001):
                    time.sleep(0.0005)
            except NotAcquired:
                counts[number] += 1

    workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for client in clients:
        client.close()
    return sum(counts)


def test_contended_short_timeouts_leave_no_row(url: str, server: Server) -> None:
    assert contend(url, 3_000) >= 3_000
    wait_until(lambda: not server.advisory_locks(), "a phantom holds the lock")


@pytest.mark.slow
def test_sixty_thousand_contended_short_timeouts_leave_no_row(url: str, server: Server) -> None:
    assert contend(url, 60_000) >= 60_000
    wait_until(lambda: not server.advisory_locks(), "a phantom holds the lock")


def test_a_wait_that_nobody_waits_for_is_taken_out_of_the_servers_queue(
    url: str, db: psycopg.Connection[Any], server: Server
) -> None:
    key = 17690
    db.execute("select pg_advisory_lock(1, %s)", (key,))

    async def main() -> None:
        async with AsyncLocks.from_url(url) as locks:
            task = asyncio.create_task(locks.hold(1, key, wait=PATIENCE).__aenter__())
            await asyncio.to_thread(wait_until, lambda: server.waiting(key), "nobody stood in the server's queue")
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.to_thread(wait_until, lambda: not server.waiting(key), "the wait was not cancelled")

    asyncio.run(main())
    db.execute("select pg_advisory_unlock(1, %s)", (key,))
