"""What a lone waiter on a busy file lock costs: at most 0.5 % of one core. ``filelock``, which polls, beside it.

Each waiter is a process of its own and adds up the CPU time of all its threads. They wait at the same time, so that
noise falls on all alike.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import filelock

from holdfast import AsyncLocks, Locks

from .figure import Figure, show

BOUND_PERCENT = 0.5
SETTLE, SPAN, ROUNDS = 0.5, 3.0, 2


def measure() -> list[Figure]:
    best = dict.fromkeys(("thread", "task", "filelock"), float("inf"))
    for _ in range(ROUNDS):
        for kind, percent in _one_round(list(best)).items():
            best[kind] = min(best[kind], percent)
    return [
        Figure("a waiting thread", best["thread"], "% of a core", BOUND_PERCENT),
        Figure("a waiting task", best["task"], "% of a core", BOUND_PERCENT),
        Figure("  filelock", best["filelock"], "% of a core"),
    ]


def _one_round(kinds: list[str]) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        with Locks.from_url(Path(folder).as_uri()) as locks, locks.hold("busy"):
            with filelock.FileLock(f"{folder}/peer.lock"):
                command = [sys.executable, "-m", "benchmarks.waiter", "--wait"]
                waiters = {
                    kind: subprocess.Popen([*command, kind, folder], stdout=subprocess.PIPE, text=True)
                    for kind in kinds
                }
                return {kind: float(waiter.communicate(timeout=60)[0]) for kind, waiter in waiters.items()}


def _wait(kind: str, folder: str) -> None:
    """The waiter's process: waits in one thread (or a task there) and reads the process's clock in another."""
    url = Path(folder).as_uri()

    async def in_task() -> None:
        async with AsyncLocks.from_url(url).hold("busy", wait=60):
            pass

    def wait() -> None:
        if kind == "task":
            asyncio.run(in_task())
        elif kind == "thread":
            with Locks.from_url(url).hold("busy", wait=60):
                pass
        else:
            with filelock.FileLock(f"{folder}/peer.lock", timeout=60):
                pass

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    time.sleep(SETTLE)
    start, used = time.monotonic(), time.process_time()
    time.sleep(SPAN)
    assert waiting.is_alive(), "it does not wait: what was measured is nothing"
    print(100 * (time.process_time() - used) / (time.monotonic() - start))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--wait"]:
        _wait(*sys.argv[2:4])
    else:
        sys.exit(not show(measure()))
