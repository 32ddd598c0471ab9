"""First come, first served between processes, but for a bounded number of hand-overs inside one."""

import itertools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import psycopg
import pytest
from eyes import Server, wait_until

from holdfast import Locks
from holdfast.engines.postgres.lines import HANDOVERS
from holdfast.testing import PATIENCE

CROWD = """
import os, sys, threading, time
import psycopg
from holdfast import Locks
url, name, path, turns, seconds = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), float(sys.argv[5])
log = os.open(path, os.O_WRONLY | os.O_APPEND)
eyes = psycopg.connect(url, autocommit=True)
waiting = "select exists (select from pg_locks where locktype = 'advisory' and objid = 1 and not granted)"
locks = Locks.from_url(url)
with locks.hold(10, 99):  # connects
    pass
print("ready", flush=True)
sys.stdin.readline()

def spin():
    for _ in range(turns):
        with locks.hold(10, 1, wait=60):
            others_wait = eyes.execute(waiting).fetchone()[0]
            os.write(log, (name.upper() if others_wait else name).encode())
            time.sleep(seconds)

threads = [threading.Thread(target=spin) for _ in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
locks.close()
"""


@pytest.fixture
def history(tmp_path: Path) -> Path:
    """A file to which every holder adds the letter of its process: a capital if another one stands in the queue."""
    path = tmp_path / "history"
    path.touch()
    return path


class Crowd:
    """A process with eight threads that take one lock again and again."""

    def __init__(self, url: str, name: str, history: Path, turns: int, seconds: float = 0.0) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", CROWD, url, name, str(history), str(turns), str(seconds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
        )
        assert self.process.stdout is not None and self.process.stdout.readline() == "ready\n"

    def start(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self, *, kill: bool = False) -> None:
        if kill:
            self.process.kill()
        self.process.wait(PATIENCE)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


def while_others_wait(run: str) -> int:
    """Of the grants to one process in a row, those since another one waited: before, it may have had no time to."""
    return len(run.lstrip(run[:1].lower()))


def test_no_process_has_more_than_its_turns_while_others_wait(
    url: str, db: psycopg.Connection[Any], server: Server, history: Path
) -> None:
    db.execute("select pg_advisory_lock(10, 1)")  # until all of them stand in the queue
    crowds = [Crowd(url, name, history, turns=25) for name in "abc"]
    try:
        for crowd in crowds:
            crowd.start()
        wait_until(lambda: len(server.waiting(1)) == 3, "not every process stands in the queue")
        db.execute("select pg_advisory_unlock(10, 1)")
    finally:
        for crowd in crowds:
            crowd.end()
    grants = history.read_text()
    assert len(grants) == 3 * 8 * 25, "a grant is missing"
    runs = ["".join(run) for _, run in itertools.groupby(grants, key=str.lower)]
    longest = max(map(while_others_wait, runs))
    print(f"{len(grants)} grants in {len(runs)} runs, the longest while others waited: {longest}")
    assert longest <= HANDOVERS + 1, grants
    assert {run[0].upper() for run in runs[:3]} == set("ABC"), "the queue's order was not kept"


def test_a_lone_waiter_gets_in_within_the_bound(url: str, history: Path) -> None:
    crowd = Crowd(url, "a", history, turns=100_000, seconds=0.003)
    try:
        with Locks.from_url(url) as locks:
            crowd.start()
            wait_until(lambda: history.stat().st_size > 20, "the crowd does not run")
            grants = []
            for _ in range(6):
                before = history.stat().st_size
                with locks.hold(10, 1, wait=PATIENCE):
                    grants.append(while_others_wait(history.read_text()[before:]))
        print(f"grants to the crowd before ours: {grants}")
        assert max(grants) <= HANDOVERS + 1, grants
    finally:
        crowd.end(kill=True)
