"""One process of the scheduler's benchmark: runs what is due, and tells when each occurrence began."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

from . import scheduler_peers
from .scheduler_peers import BEGUN


async def holdfast(url: str, seconds: float) -> None:
    from holdfast.scheduler import ACTION_DISPATCHERS, Execution, Scheduler

    async def tick(execution: Execution) -> None:
        now, run = time.time(), execution.run
        BEGUN.append((str(run.action_id), run.scheduled_for.timestamp(), now))

    ACTION_DISPATCHERS["tick"] = tick
    async with Scheduler(url, max_running=200):
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)


async def idle(url: str, seconds: float) -> None:
    """Tells what share of a core an instance takes that has nothing to do."""
    from holdfast.scheduler import Scheduler

    async with Scheduler(url):
        print("ready", flush=True)
        await asyncio.sleep(2)  # what starting takes is not counted
        before = time.process_time()
        await asyncio.sleep(seconds)
        BEGUN.append(("idle", 0.0, 100 * (time.process_time() - before) / seconds))


def main(kind: str, url: str, seconds: str) -> None:
    loops: dict[str, Any] = {"holdfast": holdfast, "idle": idle, "procrastinate": scheduler_peers.procrastinate}
    if kind == "apscheduler":
        scheduler_peers.apscheduler(url)
    else:
        asyncio.run(loops[kind](url, float(seconds)))
    print(json.dumps(BEGUN), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:4])
