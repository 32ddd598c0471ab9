"""200 actions every second in 5 processes on one PostgreSQL: twice, lost, late; and what an idle instance takes.

All 200 are due at the same moment. How late an occurrence began is told by its handler. The peers, on a server of the
same kind: ``procrastinate``'s periodic tasks, and APScheduler 3 with one job store for all processes. What a peer has
not begun 3 s after the end counts as lost.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from datetime import UTC, datetime
from typing import NamedTuple

import psycopg

from holdfast import schema
from holdfast.embedded import start_postgres
from holdfast.scheduler import ACTION_DISPATCHERS, ScheduledAction, Scheduler

from .figure import Figure, show
from .scheduler_peers import ACTIONS, prepare_apscheduler, prepare_procrastinate

PROCESSES = 5
SECONDS = 30
PEER_SECONDS = 10
IDLE_SECONDS = 10
MANY = 10_000


class Observed(NamedTuple):
    twice: int
    lost: int
    p50: float
    p99: float
    """Milliseconds from the moment of an occurrence to its handler."""


def measure() -> list[Figure]:
    with tempfile.TemporaryDirectory() as folder, start_postgres(folder) as server:
        ours = _ours(server.url)
        few, many = _idle(server.url, 10), _idle(server.url, MANY)
        with psycopg.connect(server.url, autocommit=True) as db:
            db.execute("drop schema holdfast cascade")
        procrastinate = _procrastinate(server.url)
        apscheduler = _apscheduler(server.url)
    return [
        Figure("occurrences run twice", ours.twice, f"of {ACTIONS * SECONDS}", 0),
        Figure("  procrastinate", procrastinate.twice, f"of {ACTIONS * PEER_SECONDS}"),
        Figure("  APScheduler 3, one job store", apscheduler.twice, f"of {ACTIONS * PEER_SECONDS}"),
        Figure("occurrences lost", ours.lost, "", 0),
        Figure("  procrastinate", procrastinate.lost, ""),
        Figure("  APScheduler 3, one job store", apscheduler.lost, ""),
        Figure("begun late, p99", ours.p99, "ms", 500),
        Figure("  procrastinate", procrastinate.p99, "ms"),
        Figure("  APScheduler 3, one job store", apscheduler.p99, "ms"),
        Figure("begun late, p50", ours.p50, "ms"),
        Figure("  procrastinate", procrastinate.p50, "ms"),
        Figure("  APScheduler 3, one job store", apscheduler.p50, "ms"),
        Figure(f"an idle instance, {MANY} actions", many, "% of a core", 1),
        Figure("  with 10 actions", few, "% of a core"),
    ]


def _ours(url: str) -> Observed:
    schema.upgrade(url)
    ACTION_DISPATCHERS["tick"] = lambda execution: None
    start = float(int(time.time()) + 12)

    async def prepare() -> None:
        scheduler = Scheduler(url)
        for _ in range(ACTIONS):
            await scheduler.add(
                ScheduledAction(
                    action_type="tick",
                    schedule_type="interval",
                    interval_seconds=1,
                    misfire="run_all",
                    misfire_limit=1000,
                    allow_concurrent=True,
                    start_at=datetime.fromtimestamp(start, UTC),
                )
            )
        await scheduler.stop()

    asyncio.run(prepare())
    processes = _start("holdfast", url, PROCESSES)
    assert time.time() < start, "the machine is too slow to prepare in time"
    _sleep_until(start + SECONDS - 0.5)
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("update holdfast.scheduled_action set status = 'paused'")
    time.sleep(2)
    return _observed(_end(processes), start, SECONDS)


def _procrastinate(url: str) -> Observed:
    prepare_procrastinate(url)
    processes = _start("procrastinate", url, PROCESSES)
    start = float(int(time.time()) + 3)
    _sleep_until(start + PEER_SECONDS + 3)  # it may be late
    return _observed(_end(processes), start, PEER_SECONDS)


def _apscheduler(url: str) -> Observed:
    start = float(int(time.time()) + 10)
    prepare_apscheduler(url, start)
    processes = _start("apscheduler", url, PROCESSES)
    for process in processes:
        _tell(process)
    _sleep_until(start + PEER_SECONDS + 3)
    return _observed(_end(processes), start, PEER_SECONDS)


def _idle(url: str, actions: int) -> float:
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("update holdfast.scheduled_action set status = 'active', next_run_at = now() + interval '1 year'")
        db.execute("delete from holdfast.scheduled_action where id <> (select min(id) from holdfast.scheduled_action)")
        db.execute(
            "insert into holdfast.scheduled_action "
            "select (jsonb_populate_record(a, jsonb_build_object('id', 1000 + n))).* "
            "from holdfast.scheduled_action a, generate_series(2, %s::int) n",
            (actions,),
        )
        db.execute("vacuum analyze holdfast.scheduled_action")
    (process,) = _start("idle", url, 1, IDLE_SECONDS)
    ((_, _, share),) = _end([process])
    return share


def _start(kind: str, url: str, count: int, seconds: float = 0) -> list[subprocess.Popen[str]]:
    words = [sys.executable, "-m", "benchmarks.scheduler_worker", kind, url, str(seconds)]
    processes = [
        subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(count)
    ]
    for process in processes:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
    return processes


def _tell(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def _end(processes: list[subprocess.Popen[str]]) -> list[tuple[str, float, float]]:
    return [
        (action, moment, begun)
        for said, _ in [process.communicate("\n", timeout=60) for process in processes]
        for action, moment, begun in json.loads(said.splitlines()[-1])
    ]


def _sleep_until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.time()))


def _observed(begun: list[tuple[str, float, float]], start: float, seconds: int) -> Observed:
    times = Counter((action, moment) for action, moment, _ in begun if start <= moment < start + seconds)
    late = sorted(1000 * (began - moment) for _, moment, began in begun if start <= moment < start + seconds)
    return Observed(
        twice=sum(count - 1 for count in times.values()),
        lost=ACTIONS * seconds - len(times),
        p50=late[len(late) // 2] if late else float("inf"),
        p99=late[len(late) * 99 // 100] if late else float("inf"),
    )


if __name__ == "__main__":
    sys.exit(not show(measure()))
