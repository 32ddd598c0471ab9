"""Drain: 32 waiters in 4 processes on one key, 2 ms of work each: time until all are done over the ideal 64 ms."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

PROCESSES, WAITERS, WORK = 4, 8, 0.002
IDEAL = PROCESSES * WAITERS * WORK
SETTLE = 0.3  # for all waiters to stand in the queue before it is opened


def open_sync(kind: str, place: str) -> Callable[[], AbstractContextManager[Any]]:
    """A function that gives the block to wait in."""
    if kind == "filelock":
        import filelock

        return lambda: filelock.FileLock(f"{place}/burst.lock", timeout=30)
    from holdfast import Locks

    locks = Locks.from_url(place)
    return lambda: locks.hold("burst", wait=30)


def work_in_threads(kind: str, place: str) -> list[tuple[float, float]]:
    hold = open_sync(kind, place)
    spans: list[tuple[float, float]] = []

    def wait_and_work() -> None:
        with hold():
            start = time.monotonic()
            time.sleep(WORK)
            spans.append((start, time.monotonic()))

    threads = [threading.Thread(target=wait_and_work) for _ in range(WAITERS)]
    for thread in threads:
        thread.start()
    print("waiting", flush=True)
    for thread in threads:
        thread.join()
    return spans


async def work_in_tasks(place: str) -> list[tuple[float, float]]:
    from holdfast import AsyncLocks

    locks = AsyncLocks.from_url(place)
    spans: list[tuple[float, float]] = []

    async def wait_and_work() -> None:
        async with locks.hold("burst", wait=30):
            start = time.monotonic()
            await asyncio.sleep(WORK)
            spans.append((start, time.monotonic()))

    tasks = [asyncio.create_task(wait_and_work()) for _ in range(WAITERS)]
    await asyncio.sleep(0)
    print("waiting", flush=True)
    await asyncio.gather(*tasks)
    return spans


def worker(kind: str, place: str) -> None:
    spans = asyncio.run(work_in_tasks(place)) if kind == "async" else work_in_threads(kind, place)
    print(json.dumps(spans), flush=True)


def drain(kind: str, place: str) -> float:
    """Seconds from the opening of the queue to the end of the last one's work."""
    command = [sys.executable, "-m", "benchmarks.burst", "--worker", kind, place]
    with open_sync(kind, place)():
        workers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(PROCESSES)]
        for process in workers:
            assert process.stdout is not None
            assert process.stdout.readline() == "waiting\n"
        time.sleep(SETTLE)
        opened = time.monotonic()
    spans: list[tuple[float, float]] = []
    for process in workers:
        output, _ = process.communicate(timeout=60)
        spans.extend(map(tuple, json.loads(output)))
    spans.sort()
    assert len(spans) == PROCESSES * WAITERS
    for (_, end), (start, _) in zip(spans, spans[1:], strict=False):
        assert end <= start, "two holders at once"
    return spans[-1][1] - opened


def best_ratio(kind: str, place: str, rounds: int = 5) -> float:
    return min(drain(kind, place) for _ in range(rounds)) / IDEAL


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        url = Path(folder).as_uri()
        for name, kind, place in (
            ("file engine, threads", "sync", url),
            ("file engine, tasks", "async", url),
            ("filelock", "filelock", folder),
        ):
            print(f"burst drain, {name:24} {best_ratio(kind, place):6.2f} × ideal", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        worker(*sys.argv[2:4])
    else:
        main()
