"""Redis: round trips, drain, hand-over and renewal of the engine, its peers beside it on the same server.

- Uncontended hold and release, with fence: at most 1.0 × redis-py's ``Lock``, which has none, as threads and as tasks,
  taking turns at every call; and faster than python-redis-lock and pottery.
- Drain of 32 waiters in 4 processes, in strict order of arrival: at most 1.35 × ideal.
- Hand-over between two processes, from the release to the next holder's first line: at most 3 × a ``PING`` that is sent
  after the same idle time; they take turns, and the medians count.
- 5 000 leases held at once: at most 3 connections; their renewal takes at most 2 % of one core.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from statistics import median
from typing import Any

import redis
import redis.asyncio

from holdfast import AsyncLocks, Locks, embedded

from .burst import ROUNDS, _across_processes
from .figure import Figure, show
from .timing import call_by_call

DRAIN_BOUND = 1.35
HELD = 5_000
TTL = 30.0
IDLE = 0.005
HAND_OVERS = 200


def measure() -> list[Figure]:
    with (
        tempfile.TemporaryDirectory() as folder,
        embedded.start_redis(folder, options={"appendonly": "no", "save": ""}) as server,
    ):
        return [
            *_uncontended(server.url),
            *asyncio.run(_uncontended_async(server.url)),
            *_drain(server.url),
            *_hand_over(server.url),
            *asyncio.run(_many_held(server.url)),
        ]


def _uncontended(url: str) -> list[Figure]:
    import pottery
    import redis_lock

    locks, client = Locks.from_url(url), redis.Redis.from_url(url)

    def holdfast_lock() -> None:
        with locks.hold("benchmark") as held:
            _ = held.fence

    def redis_py() -> None:
        with client.lock("peer", timeout=TTL):
            pass

    def python_redis_lock() -> None:
        with redis_lock.Lock(client, "peer", expire=int(TTL)):
            pass

    def pottery_lock() -> None:
        with pottery.Redlock(key="peer", masters={client}, auto_release_time=TTL):
            pass

    two_pings = _two_pings(url)
    for call in (holdfast_lock, redis_py, python_redis_lock, pottery_lock):
        call()
    spans = call_by_call({"floor": two_pings, "holdfast": holdfast_lock, "redis-py": redis_py}, number=1000, rounds=6)
    # One at a time: pottery's threads move everything else to other cores.
    beside = call_by_call({"holdfast": holdfast_lock, "peer": python_redis_lock}, number=300, rounds=6)
    beside_pottery = call_by_call({"holdfast": holdfast_lock, "peer": pottery_lock}, number=100, rounds=4)
    locks.close()
    client.close()
    return [
        Figure("hold and release", spans["holdfast"] / spans["redis-py"], "× redis-py", 1.0),
        Figure("  hold and release", spans["holdfast"] * 1e6, "µs"),
        Figure("  redis-py's Lock", spans["redis-py"] * 1e6, "µs"),
        Figure("  floor: two PINGs on a bare socket", spans["floor"] * 1e6, "µs"),
        Figure("hold and release", beside["holdfast"] / beside["peer"], "× python-redis-lock", 1.0),
        Figure("hold and release", beside_pottery["holdfast"] / beside_pottery["peer"], "× pottery", 1.0),
        Figure("  python-redis-lock", beside["peer"] * 1e6, "µs"),
        Figure("  pottery", beside_pottery["peer"] * 1e6, "µs"),
    ]


def _two_pings(url: str) -> Callable[[], None]:
    connection = redis.Redis.from_url(url).connection_pool.get_connection()
    connection.connect()
    bare = connection._sock

    def two_pings() -> None:
        for _ in range(2):
            bare.send(b"*1\r\n$4\r\nPING\r\n")
            assert bare.recv(16) == b"+PONG\r\n"
            _ = connection  # kept open

    return two_pings


async def _uncontended_async(url: str, number: int = 800, rounds: int = 6) -> list[Figure]:
    locks = AsyncLocks.from_url(url)
    client = redis.asyncio.Redis.from_url(url)

    async def holdfast_lock() -> None:
        async with locks.hold("benchmark") as held:
            _ = held.fence

    async def redis_py() -> None:
        async with client.lock("peer", timeout=TTL):
            pass

    candidates: dict[str, Callable[[], Awaitable[None]]] = {"holdfast": holdfast_lock, "redis-py": redis_py}
    best = dict.fromkeys(candidates, float("inf"))
    for _ in range(rounds):
        spans: dict[str, list[float]] = {name: [] for name in candidates}
        for _ in range(number):
            for name, call in candidates.items():
                start = time.perf_counter()
                await call()
                spans[name].append(time.perf_counter() - start)
        for name, measured in spans.items():
            best[name] = min(best[name], median(measured))
    await locks.close()
    await client.aclose()
    return [
        Figure("hold and release in a task", best["holdfast"] / best["redis-py"], "× redis-py", 1.0),
        Figure("  hold and release in a task", best["holdfast"] * 1e6, "µs"),
        Figure("  redis-py's asyncio Lock", best["redis-py"] * 1e6, "µs"),
    ]


def _drain(url: str) -> list[Figure]:
    figures = []
    for kind in ("threads", "tasks"):
        rounds = [_across_processes(kind, url) for _ in range(ROUNDS)]
        figures += [
            Figure(f"drain, 4 processes of 8 {kind}", min(drain.ratio for drain in rounds), "× ideal", DRAIN_BOUND)
        ]
    return figures


def _hand_over(url: str) -> list[Figure]:
    """Two processes take turns at one key; the other one tells when its first line ran (one clock for both)."""
    locks = Locks.from_url(url)
    client = redis.Redis.from_url(url)
    command = [sys.executable, "-m", "benchmarks.redis", "--next", url, str(HAND_OVERS)]
    spans, pings = [], []
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdin is not None and child.stdout is not None
        for _ in range(HAND_OVERS):
            block = locks.hold("hand-over", wait=10)
            block.__enter__()
            child.stdin.write("wait\n")
            child.stdin.flush()
            while not (waiting := locks.holders()) or not waiting[0].waiting:
                time.sleep(0.0005)
            time.sleep(IDLE)
            released = time.monotonic()
            block.__exit__(None, None, None)
            spans.append(float(child.stdout.readline()) - released)
            time.sleep(IDLE)
            start = time.monotonic()
            client.ping()
            pings.append(time.monotonic() - start)
    locks.close()
    client.close()
    return [
        Figure("hand-over to another process, p50", median(spans) / median(pings), "× PING", 3.0),
        Figure("  hand-over, p50", median(spans) * 1e6, "µs"),
        Figure("  PING after the same idle time, p50", median(pings) * 1e6, "µs"),
    ]


def _next_holder(url: str, times: str) -> None:
    """The process that is handed the lock, each time it is told to wait for it."""
    locks = Locks.from_url(url)
    for _ in range(int(times)):
        sys.stdin.readline()
        with locks.hold("hand-over", wait=10):
            began = time.monotonic()
        print(began, flush=True)


async def _many_held(url: str, rounds: int = 1) -> list[Figure]:
    locks, client = AsyncLocks.from_url(url, ttl=TTL), redis.Redis.from_url(url)
    blocks: list[Any] = [locks.hold(4, number) for number in range(HELD)]
    await asyncio.gather(*(block.__aenter__() for block in blocks))
    connections = [one for one in client.client_list() if one["name"].startswith("holdfast")]
    start, used = time.monotonic(), time.process_time()
    calls = client.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0)
    await asyncio.sleep(TTL)
    spent = (time.process_time() - used) / (time.monotonic() - start)
    renewals = client.info("commandstats")["cmdstat_evalsha"]["calls"] - calls
    assert renewals >= 2 * HELD, "they are not renewed: what was measured is nothing"
    for block in blocks:
        assert not block._ticket.lost
    await asyncio.gather(*(block.__aexit__(None, None, None) for block in blocks))
    await locks.close()
    client.close()
    return [
        Figure("5 000 leases held at once", len(connections), "connections", 3),
        Figure("  their renewal, ttl 30 s", 100 * spent, "% of one core", 2),
    ]


if __name__ == "__main__":
    if sys.argv[1:2] == ["--next"]:
        _next_holder(*sys.argv[2:4])
    else:
        sys.exit(not show(measure()))
