"""Waiters across processes: strict order of arrival, and no waiter that dies or leaves is in the way."""

import asyncio
import os
import random
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from own_server import OwnServer
from sight import Database, wait_until

from holdfast import AsyncLocks, Locks
from holdfast.engines.lease.house import House
from holdfast.testing import PATIENCE, Child, Stopwatch


def test_32_waiters_in_4_processes_are_served_in_the_order_of_their_arrival(
    url: str, db: Database, key: str, tmp_path: Path
) -> None:
    served = tmp_path / "served"
    command = [sys.executable, str(Path(__file__).with_name("queue_member.py")), url, key, str(served)]
    crew = [subprocess.Popen(command, stdin=subprocess.PIPE, text=True) for _ in range(4)]
    numbers = list(range(32))
    dice = random.Random(4)
    try:
        with Locks.from_url(url, window=30) as locks, locks.hold(key):
            for number in numbers:
                member = dice.choice(crew).stdin
                assert member is not None
                member.write(f"{number}\n")
                member.flush()
                wait_until(lambda n=number: len(db.queue(f"key:{key}")) == n + 1, f"{number} does not wait")  # type: ignore[misc]
    finally:
        for process in crew:
            process.communicate(timeout=PATIENCE)
    assert [int(line) for line in served.read_text().splitlines()] == numbers


@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP])
def test_a_waiter_that_dies_or_stands_still_at_the_head_of_the_queue_costs_a_window_at_most(
    url: str, db: Database, key: str, fault: int
) -> None:
    window = 3.0
    child = Child(url)
    try:
        with Locks.from_url(url) as locks, Locks.from_url(url, window=window) as others:
            block = others.hold(key)
            block.__enter__()
            child.send("hold", key)
            wait_until(lambda: len(db.queue(f"key:{key}")) == 1, "the child does not wait")
            served = threading.Event()

            def wait() -> None:
                with locks.hold(key, wait=PATIENCE):
                    served.set()

            waiter = threading.Thread(target=wait)
            waiter.start()
            wait_until(lambda: len(db.queue(f"key:{key}")) == 2, "nobody else waits")
            os.kill(child.pid, fault)
            if fault == signal.SIGKILL:
                wait_until(lambda: not [c for c in db.connections() if f"[{child.pid}]" in c["name"]], "it lives")
            watch = Stopwatch()
            block.__exit__(None, None, None)
            assert served.wait(PATIENCE)
            # The dead one is known at once; the other has its window.
            assert watch.awake < (window - 1 if fault == signal.SIGKILL else window + 1)
            waiter.join()
    finally:
        child.kill()


def test_also_if_the_one_that_released_is_gone(url: str, db: Database, key: str) -> None:
    """Then nobody but the server knows that somebody was offered the lock and did not take it up."""
    stopped, releaser = Child(url), Child(url, ttl=60)
    try:
        with Locks.from_url(url) as locks:
            releaser.ask("hold", key)
            stopped.send("hold", key)
            wait_until(lambda: len(db.queue(f"key:{key}")) == 1, "the child does not wait")
            served = threading.Event()

            def wait() -> None:
                with locks.hold(key, wait=PATIENCE):
                    served.set()

            waiter = threading.Thread(target=wait)
            waiter.start()
            wait_until(lambda: len(db.queue(f"key:{key}")) == 2, "nobody else waits")
            stopped.stop()
            assert releaser.ask("release") == "released"
            releaser.kill()
            watch = Stopwatch()
            assert served.wait(PATIENCE)
            assert watch.awake < 1.2
            waiter.join()
    finally:
        stopped.kill()


def test_300_cancelled_waiters_leave_no_key(url: str, db: Database, key: str) -> None:
    async def main() -> None:
        dice = random.Random(3)
        async with AsyncLocks.from_url(url) as locks:

            async def wait() -> None:
                async with locks.hold(key, wait=PATIENCE):
                    await asyncio.sleep(0)

            async with locks.hold(key):
                tasks = [asyncio.create_task(wait()) for _ in range(300)]
                await asyncio.sleep(0.005)
                for task in dice.sample(tasks, 150):
                    task.cancel()
                await asyncio.sleep(0.05)
                for task in tasks:
                    task.cancel()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
            assert all(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes), outcomes
            async with locks.hold(key, wait=PATIENCE):
                pass
            wait_until(lambda: not db.locks(), "a key was left")

    asyncio.run(main())


def test_a_queue_of_dead_processes_does_not_keep_a_try_from_a_free_lock(url: str, db: Database, key: str) -> None:
    child = Child(url)
    with Locks.from_url(url) as locks:
        block = locks.hold(key)
        block.__enter__()
        child.send("hold", key)
        wait_until(lambda: db.queue(f"key:{key}"), "the child does not wait")
        child.kill()
        wait_until(lambda: not [c for c in db.connections() if f"[{child.pid}]" in c["name"]], "it lives")
        block.__exit__(None, None, None)
        with locks.try_hold(key) as held:
            assert held is not None


def test_two_clients_of_one_process_are_served_in_order_and_share_the_connections(tmp_path: Path, key: str) -> None:
    with OwnServer(tmp_path / "server") as server:
        _two_clients(server.url, server.database(), key)


def _two_clients(url: str, db: Database, key: str) -> None:
    with Locks.from_url(url) as one, Locks.from_url(url) as other:
        served: list[int] = []

        def wait(locks: Locks, number: int) -> None:
            with locks.hold(key, wait=PATIENCE):
                served.append(number)

        threads = []
        with one.hold(key):
            for number in range(6):
                threads.append(threading.Thread(target=wait, args=((one, other)[number % 2], number)))
                threads[-1].start()
                wait_until(lambda n=number: len(db.queue(f"key:{key}")) == n + 1, "it does not wait")  # type: ignore[misc]
            mine = [client for client in db.connections() if f"[{os.getpid()}]" in client["name"]]
            assert len(mine) == 2, mine
        for thread in threads:
            thread.join(PATIENCE)
        assert served == list(range(6))


def test_an_offer_that_was_evicted_is_no_loss_of_what_is_granted_later(
    url: str, db: Database, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Of two houses, so the one calls the other, as another process would; and what it offers lasts.
    with Locks.from_url(url) as locks, Locks.from_url(url, window=60) as others, ThreadPoolExecutor() as pool:
        with others.hold(key):
            came, go_on, offered = threading.Event(), threading.Event(), House.offered

            def late(house: House, label: str) -> None:
                came.set()
                go_on.wait(PATIENCE)
                offered(house, label)

            monkeypatch.setattr(House, "offered", late)

            def wait() -> None:
                with locks.hold(key, wait=PATIENCE) as held:
                    held.check()

            waiter = pool.submit(wait)
            wait_until(lambda: db.queue(f"key:{key}"), "nobody waits")
        assert came.wait(PATIENCE)
        assert locks.evict(key)
        go_on.set()
        waiter.result(PATIENCE)
