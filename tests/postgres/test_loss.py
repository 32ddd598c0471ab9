"""What a holder learns when its connection goes away, and that the client works again by itself."""

import asyncio
import os
import signal
import threading
from pathlib import Path
from typing import Any

import psycopg
import pytest
from eyes import Server, wait_until
from pg_duty import take_duty

from holdfast import AsyncLocks, BackendUnavailable, LockLost, Locks, NotAcquired
from holdfast.testing import PATIENCE, Child, Stopwatch

WITHIN = 1.0
"""Seconds in which a loss is told."""


def test_a_terminated_backend_is_told_to_a_sync_holder(url: str, server: Server) -> None:
    told = threading.Event()
    with Locks.from_url(url) as locks:
        with pytest.raises(LockLost):
            with locks.hold(1, 1001, on_lost=lambda held: told.set()) as held:
                watch = Stopwatch()
                server.terminate(server.holder(1001))
                assert told.wait(PATIENCE) and watch.awake < WITHIN
                assert held.lost
                with pytest.raises(LockLost):
                    held.check()
        with locks.hold(1, 1001) as held:  # the client works again by itself
            held.check()


def test_a_terminated_backend_cancels_an_async_body(url: str, server: Server) -> None:
    async def main() -> float:
        async with AsyncLocks.from_url(url) as locks:
            watch = Stopwatch()
            with pytest.raises(LockLost):
                async with locks.hold(1, 1002):
                    watch.restart()
                    await asyncio.to_thread(lambda: server.terminate(server.holder(1002)))
                    await asyncio.sleep(PATIENCE)
            took = watch.awake
            async with locks.hold(1, 1002):
                pass
            return took

    assert asyncio.run(main()) < WITHIN


def test_a_thousand_locks_on_a_killed_connection_are_all_told_and_all_free(url: str, server: Server) -> None:
    async def main() -> None:
        lost = 0

        async def hold(locks: AsyncLocks, number: int, inside: asyncio.Semaphore) -> None:
            nonlocal lost
            try:
                async with locks.hold(7, number):
                    inside.release()
                    await asyncio.sleep(PATIENCE)
            except LockLost:
                lost += 1

        async with AsyncLocks.from_url(url, max_connections=1) as locks:
            inside = asyncio.Semaphore(0)
            tasks = [asyncio.create_task(hold(locks, number, inside)) for number in range(1000)]
            for _ in tasks:
                await inside.acquire()
            pids = {pid for pid, granted in server.advisory_locks() if granted}
            assert len(pids) == 1
            watch = Stopwatch()
            server.terminate(pids.pop())
            await asyncio.wait_for(asyncio.gather(*tasks), PATIENCE)
            assert lost == 1000
            assert watch.awake < 3 * WITHIN
            async with locks.hold_many([(7, number) for number in range(50)]):
                pass

    asyncio.run(main())


@pytest.mark.parametrize("mode", ["fast", "immediate"])
def test_after_a_restart_of_the_server_the_client_works_again(own_server: Any, mode: str) -> None:
    url = own_server.url
    with Locks.from_url(url) as locks:
        with pytest.raises(LockLost):
            with locks.hold(1, 1003) as held:
                watch = Stopwatch()
                stop(own_server.data_dir, mode)
                wait_until(lambda: held.lost, "the loss was not told")
                assert watch.awake < WITHIN + 1  # stopping takes its time as well
        with pytest.raises((BackendUnavailable, NotAcquired)):
            with locks.hold(1, 1003, wait=0.5):
                raise AssertionError("there is no server")
        from holdfast.embedded import start_postgres

        with start_postgres(own_server.data_dir, options={"fsync": "off"}):
            with locks.hold(1, 1003, wait=PATIENCE) as held:
                held.check()


def stop(data_dir: Path, mode: str) -> None:
    postmaster = int((data_dir / "postgres" / "cluster" / "postmaster.pid").read_text().split()[0])
    os.kill(postmaster, {"fast": signal.SIGINT, "immediate": signal.SIGQUIT}[mode])


def test_the_next_one_is_in_soon_after_the_holder_is_killed(url: str) -> None:
    times: list[float] = []
    with Locks.from_url(url) as locks:
        for _ in range(5):
            child = Child(url)
            assert child.ask("hold", "killed").startswith("held")
            watch = Stopwatch()

            def wait(watch: Stopwatch = watch) -> None:
                with locks.hold("killed", wait=PATIENCE):
                    times.append(watch.awake)

            waiter = threading.Thread(target=wait)
            waiter.start()
            wait_until(lambda: any(h.waiting for h in locks.holders()), "nobody waits")
            watch.restart()
            child.kill()
            waiter.join(PATIENCE)
    assert sorted(times)[2] < 0.1, times  # promised: within 100 ms


def test_a_waiter_whose_connection_dies_goes_on_waiting(url: str, db: psycopg.Connection[Any], server: Server) -> None:
    db.execute("select pg_advisory_lock(1, 1004)")
    got = threading.Event()
    with Locks.from_url(url) as locks:

        def wait() -> None:
            with locks.hold(1, 1004, wait=PATIENCE):
                got.set()

        waiter = threading.Thread(target=wait)
        waiter.start()
        wait_until(lambda: server.waiting(1004), "nobody stood in the server's queue")
        (backend,) = server.waiting(1004)
        server.terminate(backend)
        wait_until(lambda: server.waiting(1004) not in ([], [backend]), "the wait was not taken up again")
        db.execute("select pg_advisory_unlock(1, 1004)")
        assert got.wait(PATIENCE)
        waiter.join(PATIENCE)


def test_a_lock_taken_away_behind_our_back_is_told_at_release(url: str, server: Server) -> None:
    """As if somebody had run pg_advisory_unlock_all on the lock connection."""
    with Locks.from_url(url) as locks:
        with pytest.raises(LockLost, match="not held"):
            with locks.hold(1, 1005):
                hub = locks._client.engine._hub  # type: ignore[attr-defined]
                (connection,) = hub.shared
                take_duty(connection)
                connection.pg.exec_(b"select pg_advisory_unlock_all()")
                hub.end_duty(connection)


def test_eviction_reaches_a_holder_in_another_process(url: str, server: Server) -> None:
    child = Child(url)
    try:
        assert child.ask("hold", "evict-me").startswith("held")
        with Locks.from_url(url) as locks:
            assert locks.evict("evict-me")
            with locks.hold("evict-me", wait=PATIENCE):
                pass
            assert not locks.evict("evict-me")
            for key in ("evict-me-too", "another", "and another"):
                assert child.ask("hold", key).startswith("held")
            eviction = locks.evict("evict-me-too", force=True)
            assert eviction and eviction.others == 2  # they lived on the connection that was ended
            with locks.hold("evict-me-too", wait=PATIENCE):
                pass
    finally:
        child.kill()


def test_no_secret_is_in_any_error(tmp_path: Path) -> None:
    with pytest.raises(BackendUnavailable) as caught:
        Locks.from_url("postgresql://me:s3cret@127.0.0.1:1/app").hold("a", wait=5).__enter__()
    assert "s3cret" not in str(caught.value) + repr(caught.value.__cause__)


def test_a_slow_callback_keeps_nobody_else_from_knowing(url: str, server: Server) -> None:
    asked, go_on = threading.Event(), threading.Event()

    def slow(held: object) -> None:
        asked.set()
        go_on.wait(PATIENCE)

    with Locks.from_url(url, max_connections=1) as locks:
        blocks = [locks.hold(1, 1010, on_lost=slow), locks.hold(1, 1011)]
        first, second = (block.__enter__() for block in blocks)
        watch = Stopwatch()
        server.terminate(server.holder(1010))
        assert asked.wait(PATIENCE) and watch.awake < WITHIN
        assert first.lost and second.lost  # told or not, both are marked
        with locks.hold(1, 1012, wait=PATIENCE):  # and the client works on
            pass
        go_on.set()
        for block in blocks:
            with pytest.raises(LockLost):
                block.__exit__(None, None, None)


def test_an_operators_question_is_asked_again_when_the_connection_was_gone(url: str, server: Server) -> None:
    url += ("&" if "?" in url else "?") + "application_name=holdfast-gone"
    with Locks.from_url(url) as locks:

        async def another() -> None:
            async with AsyncLocks.from_url(url) as tasks, tasks.hold(1, 1007):
                pass

        with locks.hold(1, 1006):
            asyncio.run(another())  # for whose loop a connection is opened
        hub = locks._client.engine._hub  # type: ignore[attr-defined]
        wait_until(lambda: len(hub.shared) == 2, "no second connection was opened")
        for connection in hub.shared:
            server.terminate(connection.pid)
        wait_until(lambda: not server.connections("holdfast-gone"), "the backend lives")
        assert [holder for holder in locks.holders() if holder.here] == []
        assert not locks.evict(1, 1006)
