"""The waiters of a burst: a process with so many of them, as threads or tasks, that tells when each one worked."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

Span = tuple[float, float]
"""When one had the lock: start and end on the machine's monotonic clock."""

WORK = 0.002
PATIENCE = 60.0


def opener(kind: str, place: str) -> Callable[[], AbstractContextManager[Any]]:
    """A function that gives the block to wait in."""
    if kind == "filelock":
        import filelock

        return lambda: filelock.FileLock(f"{place}/burst.lock", timeout=PATIENCE)
    from holdfast import Locks

    locks = Locks.from_url(place)
    return lambda: locks.hold("burst", wait=PATIENCE)


def in_threads(kind: str, place: str, waiters: int, ready: Callable[[], object]) -> list[Span]:
    hold = opener(kind, place)
    spans: list[Span] = []

    def wait_and_work() -> None:
        with hold():
            start = time.monotonic()
            time.sleep(WORK)
            spans.append((start, time.monotonic()))

    threads = [threading.Thread(target=wait_and_work) for _ in range(waiters)]
    for thread in threads:
        thread.start()
    ready()
    for thread in threads:
        thread.join()
    return spans


async def in_tasks(place: str, waiters: int, ready: Callable[[], object]) -> list[Span]:
    from holdfast import AsyncLocks

    locks = AsyncLocks.from_url(place)
    spans: list[Span] = []

    async def wait_and_work() -> None:
        async with locks.hold("burst", wait=PATIENCE):
            start = time.monotonic()
            await asyncio.sleep(WORK)
            spans.append((start, time.monotonic()))

    tasks = [asyncio.create_task(wait_and_work()) for _ in range(waiters)]
    await asyncio.sleep(0)
    ready()
    await asyncio.gather(*tasks)
    return spans


def work(kind: str, place: str, waiters: int, ready: Callable[[], object]) -> list[Span]:
    if kind == "tasks":
        return asyncio.run(in_tasks(place, waiters, ready))
    return in_threads(kind, place, waiters, ready)


def main(kind: str, place: str, waiters: str) -> None:
    spans = work(kind, place, int(waiters), lambda: print("waiting", flush=True))
    print(json.dumps(spans), flush=True)
    sys.stdin.read()  # stays until all processes are done: an interpreter's end keeps a core busy for milliseconds


if __name__ == "__main__":
    main(*sys.argv[1:4])
