"""Holds a second in memory: 8 threads at one key, and 1000 tasks at 1000 keys, all held at once. No bound.

``threading.Lock`` and ``asyncio.Lock`` stand beside it. Each holder gives the others a turn to run inside its block:
otherwise a thread would be done with thousands of holds before the interpreter ran the next one, and no two would ever
meet. ``threading.Lock`` is not fair, so whoever releases it may take it again at once; Holdfast wakes the next in line
and pays for the change of threads each time.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Any

from holdfast import AsyncLocks, Locks

from .figure import Figure, show

THREADS, SPAN = 8, 0.3
TASKS, HOLDS_PER_TASK = 1000, 5
ROUNDS = 5


def measure() -> list[Figure]:
    locks, async_locks = Locks.from_url("memory://bench"), AsyncLocks.from_url("memory://bench")
    peer, peers = threading.Lock(), [asyncio.Lock() for _ in range(TASKS)]
    threads = _best({"ours": lambda: _threads(lambda: locks.hold("one")), "peer": lambda: _threads(lambda: peer)})
    tasks = _best(
        {
            "ours": lambda: asyncio.run(_tasks(lambda number: async_locks.hold(1000, number))),
            "peer": lambda: asyncio.run(_tasks(lambda number: peers[number])),
        }
    )
    locks.close()
    return [
        Figure(f"{THREADS} threads at one key", threads["ours"], "holds/s"),
        Figure("  threading.Lock (not fair)", threads["peer"], "holds/s"),
        Figure(f"{TASKS} tasks at {TASKS} keys", tasks["ours"], "holds/s"),
        Figure("  asyncio.Lock", tasks["peer"], "holds/s"),
    ]


def _best(candidates: Mapping[str, Callable[[], float]]) -> dict[str, float]:
    best = dict.fromkeys(candidates, 0.0)
    for _ in range(ROUNDS):
        for name, rate in candidates.items():
            best[name] = max(best[name], rate())
    return best


def _threads(hold: Callable[[], AbstractContextManager[Any]]) -> float:
    together = threading.Barrier(THREADS)
    counts: list[int] = []

    def hammer() -> None:
        together.wait()
        count, end = 0, time.monotonic() + SPAN
        while time.monotonic() < end:
            with hold():
                time.sleep(0)
            count += 1
        counts.append(count)

    threads = [threading.Thread(target=hammer) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / SPAN


async def _tasks(hold: Callable[[int], AbstractAsyncContextManager[Any]]) -> float:
    async def visit(number: int) -> None:
        for _ in range(HOLDS_PER_TASK):
            async with hold(number):
                await asyncio.sleep(0)  # lets the others in: all locks are held at once

    start = time.perf_counter()
    await asyncio.gather(*(visit(number) for number in range(TASKS)))
    return TASKS * HOLDS_PER_TASK / (time.perf_counter() - start)


if __name__ == "__main__":
    sys.exit(not show(measure()))
