"""An uncontended hold and release in memory: at most 10 µs sync and 25 µs async.

``threading.Lock`` and ``asyncio.Lock`` stand beside it as the floor: no key, deadline, owner or fence.
"""

from __future__ import annotations

import asyncio
import sys
import threading

from holdfast import AsyncLocks, LockNamespace, Locks

from .figure import Figure, show
from .timing import per_call, per_call_async

SYNC_BOUND_US, ASYNC_BOUND_US = 10.0, 25.0
NUMBER, ROUNDS = 2000, 25


def measure() -> list[Figure]:
    return [*_sync(), *_async()]


def _sync() -> list[Figure]:
    locks, floor = Locks.from_url("memory://bench"), threading.Lock()

    def by_namespace(number: int) -> None:
        for _ in range(number):
            with locks.hold(LockNamespace.AGENT, 42):
                pass

    def by_string(number: int) -> None:
        for _ in range(number):
            with locks.hold("nightly-report"):
                pass

    def bare(number: int) -> None:
        for _ in range(number):
            with floor:
                pass

    candidates = {"namespace": by_namespace, "string": by_string, "floor": bare}
    best = per_call(candidates, NUMBER, ROUNDS)
    locks.close()
    return [
        Figure("sync hold + release, namespace key", best["namespace"] * 1e6, "µs", SYNC_BOUND_US),
        Figure("sync hold + release, string key", best["string"] * 1e6, "µs", SYNC_BOUND_US),
        Figure("  threading.Lock", best["floor"] * 1e6, "µs"),
    ]


def _async() -> list[Figure]:
    locks, floor = AsyncLocks.from_url("memory://bench"), asyncio.Lock()

    async def by_namespace(number: int) -> None:
        for _ in range(number):
            async with locks.hold(LockNamespace.AGENT, 42):
                pass

    async def by_string(number: int) -> None:
        for _ in range(number):
            async with locks.hold("nightly-report"):
                pass

    async def bare(number: int) -> None:
        for _ in range(number):
            async with floor:
                pass

    candidates = {"namespace": by_namespace, "string": by_string, "floor": bare}
    best = per_call_async(candidates, NUMBER, ROUNDS)
    return [
        Figure("async hold + release, namespace key", best["namespace"] * 1e6, "µs", ASYNC_BOUND_US),
        Figure("async hold + release, string key", best["string"] * 1e6, "µs", ASYNC_BOUND_US),
        Figure("  asyncio.Lock", best["floor"] * 1e6, "µs"),
    ]


if __name__ == "__main__":
    sys.exit(not show(measure()))
