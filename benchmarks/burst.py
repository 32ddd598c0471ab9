"""Drain: 32 waiters at one key, 2 ms of work each: from the release to the end of the last, at most 1.25 × 64 ms.

The file engine has them in 4 processes, as threads and as tasks, with ``filelock`` beside it; the memory engine in one.
The floor is the same 32 sleeps one after another with no lock at all: a sleep takes longer than it was asked to. The
processes stay until the last is done, since what an ending interpreter takes from two cores is not the lock's.

Fairness: how many grants in a row one process got while another waited, and Jain's index (1: all alike, 0.25: one had
all) of the processes' shares in the first half of the grants; the worst of the rounds.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import threading
import time
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from . import crowd
from .crowd import WORK, Span
from .figure import Figure, show

PROCESSES, WAITERS = 4, 32
IDEAL = WAITERS * WORK
BOUND = 1.25
ROUNDS = 5
SETTLE = 0.3  # for all waiters to stand in the queue before it is opened


class Drain(NamedTuple):
    ratio: float
    run: int = 0
    jain: float = 1.0


def measure() -> list[Figure]:
    rounds = [_one_round() for _ in range(ROUNDS)]

    def best(name: str) -> float:
        return min(drains[name].ratio for drains in rounds)

    def fairness(name: str) -> list[Figure]:
        return [
            Figure("  longest run of one process", max(drains[name].run for drains in rounds), "grants"),
            Figure("  Jain's index of the first half", min(drains[name].jain for drains in rounds), ""),
        ]

    return [
        Figure("file, 4 processes of 8 threads", best("file threads"), "× ideal", BOUND),
        *fairness("file threads"),
        Figure("file, 4 processes of 8 tasks", best("file tasks"), "× ideal", BOUND),
        *fairness("file tasks"),
        Figure("  filelock, 4 processes of 8 threads", best("filelock"), "× ideal"),
        *fairness("filelock"),
        Figure("memory, 32 threads", best("memory threads"), "× ideal", BOUND),
        Figure("memory, 32 tasks", best("memory tasks"), "× ideal", BOUND),
        Figure("  no lock, time.sleep one after another", best("floor threads"), "× ideal"),
        Figure("  no lock, asyncio.sleep one after another", best("floor tasks"), "× ideal"),
    ]


def _one_round() -> dict[str, Drain]:
    with tempfile.TemporaryDirectory() as folder:
        url = Path(folder).as_uri()
        return {
            "file threads": _across_processes("threads", url),
            "file tasks": _across_processes("tasks", url),
            "filelock": _across_processes("filelock", folder),
            "memory threads": _in_one_process("threads"),
            "memory tasks": _in_one_process("tasks"),
            "floor threads": Drain(_floor() / IDEAL),
            "floor tasks": Drain(asyncio.run(_floor_async()) / IDEAL),
        }


def _across_processes(kind: str, place: str) -> Drain:
    command = [sys.executable, "-m", "benchmarks.crowd", kind, place, str(WAITERS // PROCESSES)]
    with crowd.opener(kind, place)():
        processes = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for _ in range(PROCESSES)
        ]
        assert all(_line_of(process) == "waiting\n" for process in processes)
        time.sleep(SETTLE)
        opened = time.monotonic()
    spans = [json.loads(_line_of(process)) for process in processes]
    for process in processes:  # only now: see crowd.main
        process.communicate(timeout=crowd.PATIENCE)
    return _judged(opened, [[(start, end) for start, end in of_process] for of_process in spans])


def _line_of(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def _in_one_process(kind: str) -> Drain:
    ready, spans = threading.Event(), list[list[Span]]()
    with crowd.opener(kind, "memory://burst")():
        worker = threading.Thread(target=lambda: spans.append(crowd.work(kind, "memory://burst", WAITERS, ready.set)))
        worker.start()
        ready.wait()
        time.sleep(SETTLE)
        opened = time.monotonic()
    worker.join()
    return _judged(opened, spans)


def _judged(opened: float, by_process: list[list[Span]]) -> Drain:
    grants = sorted((span, number) for number, spans in enumerate(by_process) for span in spans)
    assert len(grants) == WAITERS
    for ((_, end), _), ((start, _), _) in zip(grants, grants[1:], strict=False):
        assert end <= start, "two holders at once"
    order = [number for _, number in grants]
    runs = [len(list(same)) for _, same in groupby(order)]
    shares = [order[: WAITERS // 2].count(number) for number in range(len(by_process))]
    jain = sum(shares) ** 2 / (len(shares) * sum(share**2 for share in shares))
    last_end = grants[-1][0][1]
    # The last run does not count: nobody else waited any more.
    return Drain((last_end - opened) / IDEAL, max(runs[:-1], default=0), jain)


def _floor() -> float:
    start = time.monotonic()
    for _ in range(WAITERS):
        time.sleep(WORK)
    return time.monotonic() - start


async def _floor_async() -> float:
    start = time.monotonic()
    for _ in range(WAITERS):
        await asyncio.sleep(WORK)
    return time.monotonic() - start


if __name__ == "__main__":
    sys.exit(not show(measure()))
