"""PostgreSQL: round trips, throughput and drain of the engine, each beside its floor or peer on the same server.

- Uncontended hold and release: at most 1.5 × two prepared ``select 1`` through libpq, taking turns at every call, and
  at most a sixth of what sqlalchemy-dlock and pals take. Once with client and server on one core and once on two: left
  to the kernel, they change between the two by themselves, and a round trip between two cores takes thrice as long.
- 8 threads on 8 keys: at least 1.3 × the throughput of one.
- 1 000 tasks on 1 000 keys: at least 6 × the throughput of a psycopg pool of 25 connections.
- 10 000 locks held at once: at most 4 connections, under 2 kB each on the client.
- Drain of 32 waiters in 4 processes: at most 1.25 × ideal.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import tempfile
import threading
import time
import tracemalloc
from pathlib import Path
from typing import Any

import psycopg

from holdfast import AsyncLocks, Locks, embedded

from .burst import BOUND, ROUNDS, _across_processes
from .figure import Figure, show
from .timing import call_by_call

TASKS = 1_000
POOL = 25
HELD = 10_000


def measure() -> list[Figure]:
    with (
        tempfile.TemporaryDirectory() as folder,
        embedded.start_postgres(folder, options={"fsync": "off", "max_connections": "100"}) as server,
    ):
        postmaster = int((Path(folder) / "postgres" / "cluster" / "postmaster.pid").read_text().split()[0])
        cores = sorted(os.sched_getaffinity(0))
        return [
            *(f for of_server in cores[:2] for f in _pinned(postmaster, cores[0], of_server, server.url)),
            *_threads(server.url),
            *asyncio.run(_tasks(server.url)),
            *asyncio.run(_many_held(server.url)),
            *_drain(server.url),
        ]


def _pinned(postmaster: int, of_client: int, of_server: int, url: str) -> list[Figure]:
    """The client on one core, the server's processes for it on another, or on the same."""
    before = {pid: os.sched_getaffinity(pid) for pid in (0, postmaster)}
    os.sched_setaffinity(0, {of_client})
    os.sched_setaffinity(postmaster, {of_server})  # those that it starts from now on have it from there
    try:
        return _uncontended(url, "one core" if of_client == of_server else "two cores")
    finally:
        for pid, cores in before.items():
            os.sched_setaffinity(pid, cores)


def _uncontended(url: str, on: str) -> list[Figure]:
    import sqlalchemy
    from pals import Locker
    from sqlalchemy_dlock import create_sadlock

    locks = Locks.from_url(url)
    floor = psycopg.connect(url, autocommit=True).pgconn
    floor.prepare(b"one", b"select 1")
    alchemy = sqlalchemy.create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    pals = Locker("benchmark", create_engine_callable=lambda: alchemy)

    def two_selects() -> None:
        floor.exec_prepared(b"one", [])
        floor.exec_prepared(b"one", [])

    def holdfast_lock() -> None:
        with locks.hold(1, 42):
            pass

    def dlock() -> None:
        with alchemy.connect() as connection, create_sadlock(connection, "benchmark"):
            pass

    def pals_lock() -> None:
        with pals.lock("benchmark"):
            pass

    holdfast_lock()
    spans = call_by_call({"floor": two_selects, "holdfast": holdfast_lock}, number=1500, rounds=6)
    peers = call_by_call({"holdfast": holdfast_lock, "dlock": dlock, "pals": pals_lock}, number=150, rounds=4)
    locks.close()
    alchemy.dispose()
    return [
        Figure(f"hold and release, {on}", spans["holdfast"] / spans["floor"], "× floor", 1.5),
        Figure("  hold and release", spans["holdfast"] * 1e6, "µs"),
        Figure("  floor: two prepared select 1 through libpq", spans["floor"] * 1e6, "µs"),
        Figure(f"hold and release, {on}", peers["holdfast"] / peers["dlock"], "× sqlalchemy-dlock", 1 / 6),
        Figure(f"hold and release, {on}", peers["holdfast"] / peers["pals"], "× pals", 1 / 6),
        Figure("  sqlalchemy-dlock", peers["dlock"] * 1e6, "µs"),
        Figure("  pals", peers["pals"] * 1e6, "µs"),
    ]


def _threads(url: str, rounds: int = 5, seconds: float = 0.5) -> list[Figure]:
    locks = Locks.from_url(url)

    def per_second(threads: int) -> float:
        counts, stop = [0] * threads, time.perf_counter() + seconds

        def work(number: int) -> None:
            while time.perf_counter() < stop:
                with locks.hold(2, number):
                    counts[number] += 1

        workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        return sum(counts) / seconds

    best = {1: 0.0, 8: 0.0}
    for _ in range(rounds):
        for threads in best:
            best[threads] = max(best[threads], per_second(threads))
    locks.close()
    return [
        Figure("one thread over 8 threads on 8 keys", best[1] / best[8], "× throughput", 1 / 1.3),
        Figure("  8 threads", best[8], "locks/s"),
        Figure("  1 thread", best[1], "locks/s"),
    ]


async def _tasks(url: str, rounds: int = 5) -> list[Figure]:
    from psycopg_pool import AsyncConnectionPool

    locks = AsyncLocks.from_url(url)

    async def ours(number: int) -> None:
        async with locks.hold(3, number):
            pass

    async with AsyncConnectionPool(url, min_size=POOL, max_size=POOL, kwargs={"autocommit": True}, open=False) as pool:

        async def pooled(number: int) -> None:
            async with pool.connection() as connection:
                await connection.execute("select pg_advisory_lock(3, %s)", (number,))
                await connection.execute("select pg_advisory_unlock(3, %s)", (number,))

        best = {"ours": 0.0, "pool": 0.0}
        for _ in range(rounds):
            for name, work in (("ours", ours), ("pool", pooled)):
                start = time.perf_counter()
                await asyncio.gather(*(work(number) for number in range(TASKS)))
                best[name] = max(best[name], TASKS / (time.perf_counter() - start))
    await locks.close()
    return [
        Figure("a pool of 25 over 1 000 tasks on 1 000 keys", best["pool"] / best["ours"], "× throughput", 1 / 6),
        Figure("  1 000 tasks", best["ours"], "locks/s"),
        Figure("  psycopg pool of 25 connections", best["pool"], "locks/s"),
    ]


async def _many_held(url: str) -> list[Figure]:
    locks = AsyncLocks.from_url(url)
    async with locks.hold(4, 0):
        pass  # connected
    tracemalloc.start()
    blocks: list[Any] = [locks.hold(4, number) for number in range(HELD)]
    await asyncio.gather(*(block.__aenter__() for block in blocks))
    await asyncio.sleep(0)  # or this very turn of the loop still holds the tasks of gather(), which are done
    gc.collect()
    memory = tracemalloc.get_traced_memory()[0] / HELD
    tracemalloc.stop()
    with psycopg.connect(url) as db:
        row = db.execute("select count(*), count(distinct pid) from pg_locks where locktype = 'advisory'").fetchone()
    assert row is not None
    assert row[0] == HELD
    await asyncio.gather(*(block.__aexit__(None, None, None) for block in blocks))
    await locks.close()
    return [
        Figure("10 000 locks held at once", row[1], "connections", 4),
        Figure("  each of them", memory / 1024, "kB", 2),
    ]


def _drain(url: str) -> list[Figure]:
    figures = []
    for kind in ("threads", "tasks"):
        rounds = [_across_processes(kind, url) for _ in range(ROUNDS)]
        figures += [
            Figure(f"drain, 4 processes of 8 {kind}", min(drain.ratio for drain in rounds), "× ideal", BOUND),
            Figure("  longest run of one process", max(drain.run for drain in rounds), "grants"),
        ]
    return figures


if __name__ == "__main__":
    sys.exit(not show(measure()))
