"""Many locks on few connections: how many, how they are batched, and that keys do not get into each other's way."""

import asyncio
import itertools
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from eyes import Server, wait_until

from holdfast import AsyncLocks, Key, Locks, WouldDeadlock
from holdfast.engines.postgres.connection import LockConnection
from holdfast.keys import PgKey
from holdfast.testing import PATIENCE, Stopwatch

SOON = 0.5
"""Seconds after which a released key is got, although there is no connection left to wait for it."""


@pytest.mark.parametrize("form", ["pair", "string"])
def test_ten_thousand_locks_are_held_on_at_most_four_connections(url: str, server: Server, form: str) -> None:
    """String keys make the longest statements: more than a socket takes at once."""
    count = 10_000

    async def main() -> None:
        async with AsyncLocks.from_url(f"{url}&application_name=tenthousand") as locks:
            inside, leave = asyncio.Semaphore(0), asyncio.Event()
            async with locks.hold(5, count):
                pass
            hub = locks._client.engine._hub  # type: ignore[attr-defined]
            all_asked = threading.Event()
            hub.courier.call(lambda: all_asked.wait(PATIENCE))  # all of them go out at once

            async def hold(number: int) -> None:
                key = (5, number) if form == "pair" else (f"key-{number}",)
                async with locks.hold(*key, wait=PATIENCE):
                    inside.release()
                    await leave.wait()

            watch = Stopwatch()
            tasks = [asyncio.create_task(hold(number)) for number in range(count)]
            await asyncio.to_thread(wait_until, lambda: len(hub.lines.by_key) >= count, "not everybody has asked")
            all_asked.set()
            for _ in tasks:
                await asyncio.wait_for(inside.acquire(), PATIENCE)
            print(f"{count} locks in {watch.awake:.2f} s on {server.connections('tenthousand')}")
            assert server.connections("tenthousand") <= 4
            assert sum(granted for _, granted in server.advisory_locks()) == count
            leave.set()
            await asyncio.gather(*tasks)

    asyncio.run(main())


@contextmanager
def one_wire_key(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Every key has the same place at the server, as two strings with one hash would."""
    monkeypatch.setattr(Key, "pg", property(lambda key: PgKey(None, 4711)))
    yield
    monkeypatch.undo()


def test_two_keys_with_one_wire_key_exclude_each_other(
    url: str, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside, most, entries = 0, 0, 0
    new = uuid4().hex  # keys that were used before have their place
    mutex = threading.Lock()

    def enter() -> None:
        nonlocal inside, most, entries
        with mutex:
            inside, entries = inside + 1, entries + 1
            most = max(most, inside)

    def leave() -> None:
        nonlocal inside
        with mutex:
            inside -= 1

    def sync_user(locks: Locks, name: str) -> None:
        for _ in range(30):
            with locks.hold(f"{name}-{new}", wait=PATIENCE):
                enter()
                time.sleep(0.0005)
                leave()

    async def async_user(url: str) -> None:
        async def one(name: str) -> None:
            for _ in range(30):
                async with locks.hold(f"{name}-{new}", wait=PATIENCE):
                    enter()
                    await asyncio.sleep(0.0005)
                    leave()

        async with AsyncLocks.from_url(url) as locks:
            await asyncio.gather(*(one(f"task-{number}") for number in range(3)))

    with one_wire_key(monkeypatch):
        with Locks.from_url(url) as first, Locks.from_url(url, max_waiting=3) as second:
            users = [
                threading.Thread(target=sync_user, args=(locks, name))
                for locks, name in ((first, "a"), (first, "b"), (second, "c"), (second, "a"))
            ]
            users.append(threading.Thread(target=lambda: asyncio.run(async_user(url))))
            for user in users:
                user.start()
            for user in users:
                user.join(PATIENCE)
            assert (most, entries) == (1, 30 * 7)


def test_one_owner_with_two_keys_of_one_wire_key_is_told_so(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, c = (f"{name}-{uuid4().hex}" for name in "abc")  # keys that were used before have their place
    with one_wire_key(monkeypatch):
        with Locks.from_url(url) as first, Locks.from_url(url, max_waiting=3) as second:
            with first.hold(a):
                with pytest.raises(WouldDeadlock):
                    first.hold(b, wait=PATIENCE).__enter__()
                with pytest.raises(WouldDeadlock):
                    second.hold(c, wait=PATIENCE).__enter__()
                with second.try_hold(c) as held:
                    assert held is None
            with first.hold_many([a, b]) as handles:  # one lock, taken once
                assert handles[0] is handles[1]


@pytest.fixture
def busy(db: psycopg.Connection[Any]) -> Iterator[range]:
    """Twenty keys (6, number) that another session holds."""
    numbers = range(6000, 6020)
    db.execute(
        "select pg_advisory_lock(6, number) from generate_series(%s::int, %s::int) as number", (numbers[0], numbers[-1])
    )
    yield numbers
    db.execute("select pg_advisory_unlock_all()")


def test_no_key_waits_for_another_keys_place(
    url: str, db: psycopg.Connection[Any], server: Server, busy: range
) -> None:
    address = f"{url}&application_name=places"
    got: set[int] = set()
    with Locks.from_url(address, max_connections=2, max_waiting=2) as locks:

        def wait(number: int) -> None:
            with locks.hold(6, number, wait=PATIENCE):
                got.add(number)

        waiters = [threading.Thread(target=wait, args=(number,)) for number in busy]
        for waiter in waiters:
            waiter.start()
        wait_until(lambda: sum(bool(server.waiting(number)) for number in busy) == 2, "two stand in the queue")
        most, times = 0, []
        for number in reversed(busy):  # the last come has the worst place
            most = max(most, server.connections("places"))
            watch = Stopwatch()
            db.execute("select pg_advisory_unlock(6, %s)", (number,))
            wait_until(lambda number=number: number in got, f"{number} was not got")  # type: ignore[misc]
            times.append(watch.awake)
        for waiter in waiters:
            waiter.join(PATIENCE)
        print(f"got after {max(times):.3f} s at most, {sorted(times)[len(times) // 2]:.3f} s in the median")
        assert max(times) < SOON, times
        assert most <= 4


def test_keys_without_a_place_are_tried_now_and_then_not_all_the_time(
    url: str, db: psycopg.Connection[Any], busy: range, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hundred keys without a place cost the server some 50 statements a second, not as many as it can answer."""
    trips = count_statements(monkeypatch)
    with Locks.from_url(url, max_waiting=1) as locks:
        with locks.hold(6, 1):
            pass

        def wait(number: int) -> None:
            with locks.hold(6, number, wait=PATIENCE):
                pass

        waiters = [threading.Thread(target=wait, args=(number,)) for number in busy]
        for waiter in waiters:
            waiter.start()
        wait_until(lambda: len(locks._client.engine._hub.wishes.polled) > 10, "nothing is polled")  # type: ignore[attr-defined]
        watch, before = Stopwatch(), next(trips)
        wait_until(lambda: next(trips) - before >= 25, "they are tried too seldom")
        took = watch.elapsed
        db.execute("select pg_advisory_unlock_all()")
        for waiter in waiters:
            waiter.join(PATIENCE)
    assert took > 0.2, f"25 statements in {took:.3f} s"


def count_statements(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """How many batched statements were sent up to now."""
    sent = itertools.count()
    seen = [0]
    ask = LockConnection.ask

    def counted(connection: LockConnection, *arguments: Any) -> Any:
        seen[0] = next(sent) + 1
        return ask(connection, *arguments)

    monkeypatch.setattr(LockConnection, "ask", counted)
    return (seen[0] for _ in itertools.count())


def test_requests_of_many_threads_go_out_together(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """While one round trip is under way, all that is asked meanwhile goes out in the next."""
    threads, turns = 16, 25
    with Locks.from_url(url, max_connections=1) as locks:
        with locks.hold(5, 1):
            pass
        sizes: list[int] = []
        serve, alone = LockConnection.serve, LockConnection._serve_alone

        def counted(connection: LockConnection) -> Any:
            sizes.append(len(connection.pending))
            return serve(connection)

        def counted_alone(connection: LockConnection, *arguments: Any) -> bool:
            pending = len(connection.pending)
            done = alone(connection, *arguments)  # type: ignore[arg-type]
            if done or connection.trip is not None:
                sizes.append(pending)
            return done

        monkeypatch.setattr(LockConnection, "serve", counted)
        monkeypatch.setattr(LockConnection, "_serve_alone", counted_alone)
        barrier = threading.Barrier(threads)

        def work(number: int) -> None:
            barrier.wait(PATIENCE)
            for turn in range(turns):
                with locks.hold(5, 1000 * (number + 1) + turn):
                    pass

        workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join(PATIENCE)
    requests = 2 * threads * turns
    print(f"{requests} requests in {len(sizes)} round trips, {max(sizes)} at most")
    assert len(sizes) < requests / 2
    assert max(sizes) > 2
