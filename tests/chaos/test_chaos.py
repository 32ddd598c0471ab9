"""Everything at once: threads and tasks of three processes on six keys, with deadlines as short as they get, while
processes are stopped, killed and interrupted and statements are cancelled.

Whatever happens: there is one holder at a time, everybody gets an answer in time, and nothing is left behind.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from chaos_member import KEYS

from addresses import with_option
from holdfast import Locks, schema
from holdfast.testing import PATIENCE
from waiting import wait_until

MEMBERS = 3
LEASE = {"ttl": 3.0}


class Member:
    """The parent's end."""

    def __init__(self, url: str, board: Path, seed: int, options: dict[str, Any]) -> None:
        command = [sys.executable, str(Path(__file__).with_name("chaos_member.py")), url, str(board), str(seed)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        self.process = subprocess.Popen(
            [*command, json.dumps(options)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        assert self.process.stdout is not None and self.process.stdout.readline() == "ready\n"

    def report(self) -> dict[str, Any]:
        said, _ = self.process.communicate("\n", timeout=2 * PATIENCE)
        report: dict[str, Any] = json.loads(said)
        return report


class Chaos:
    def __init__(self, url: str, board: Path, options: dict[str, Any], cancel: Callable[[], None] | None) -> None:
        self._url, self._options, self._board, self._cancel = url, options, board, cancel
        self.seed = int(os.environ.get("HOLDFAST_CHAOS_SEED", random.randrange(10**6)))
        self._dice = random.Random(self.seed)
        board.write_bytes(bytes(16 * KEYS))
        self.members: list[Member] = []

    def rage(self, seconds: float) -> None:
        self.members += [self._new_member() for _ in range(MEMBERS)]
        faults = [self._stop, self._stop, self._interrupt, self._interrupt, self._maybe_kill]
        faults += [self._cancel] * 2 if self._cancel is not None else []
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(0.1 * self._dice.random())
            self._dice.choice(faults)()

    def _new_member(self) -> Member:
        return Member(self._url, self._board, self._dice.randrange(10**9), self._options)

    def _stop(self) -> None:
        process = self._dice.choice(self.members).process
        process.send_signal(signal.SIGSTOP)
        time.sleep(0.3 * self._dice.random())
        process.send_signal(signal.SIGCONT)

    def _interrupt(self) -> None:
        self._dice.choice(self.members).process.send_signal(signal.SIGINT)

    def _maybe_kill(self) -> None:
        if self._dice.random() < 0.2:
            number = self._dice.randrange(MEMBERS)
            self.members[number].process.kill()
            self.members[number].process.communicate()
            self.members[number] = self._new_member()

    def marks(self) -> set[tuple[int, bytes]]:
        """Those that the last holder of each key has left."""
        marks = self._board.read_bytes()
        return {(key, marks[16 * key : 16 * key + 16]) for key in range(KEYS)}

    def end(self) -> None:
        for member in self.members:
            if member.process.poll() is None:
                member.process.kill()
                member.process.communicate()


@pytest.fixture
def chaos(tmp_path: Path) -> Iterator[Callable[..., Chaos]]:
    made: list[Chaos] = []

    def make(url: str, cancel: Callable[[], None] | None = None, **options: Any) -> Chaos:
        made.append(Chaos(url, tmp_path / "board", options, cancel))
        return made[0]

    yield make
    for each in made:
        each.end()


def judge(chaos: Chaos, url: str, seconds: float) -> None:
    chaos.rage(seconds)
    before = chaos.marks()
    wait_until(lambda: not before & chaos.marks(), "a key has had no holder since")
    reports = [member.report() for member in chaos.members]
    did = sum((Counter(report["did"]) for report in reports), Counter[str]())
    print(f"seed {chaos.seed}: {dict(did)}")
    assert not [wrong for report in reports for wrong in report["wrong"]], f"seed {chaos.seed}"
    with Locks.from_url(url) as locks:
        for key in range(KEYS):
            with locks.hold(7, key, wait=PATIENCE):
                pass
        assert locks.holders() == []


lengths = pytest.mark.parametrize("seconds", [3, pytest.param(60, marks=pytest.mark.slow)])


@lengths
@pytest.mark.parametrize("engine", ["", "fence=true", "mode=lease"], ids=["advisory", "fenced", "lease table"])
def test_chaos_on_postgresql(
    chaos: Callable[..., Chaos], holdfast_postgres_url: str, engine: str, seconds: float
) -> None:
    schema.upgrade(holdfast_postgres_url)
    with psycopg.connect(holdfast_postgres_url, autocommit=True) as db:

        def cancel() -> None:
            db.execute("select pg_cancel_backend(pid) from pg_stat_activity where application_name like 'holdfast%'")

        url = with_option(holdfast_postgres_url, engine) if engine else holdfast_postgres_url
        judge(chaos(url, cancel, **(LEASE if engine == "mode=lease" else {})), url, seconds)
        left = "select count(*) from pg_locks where locktype = 'advisory'"
        wait_until(lambda: db.execute(left).fetchone() == (0,), "an advisory lock was left behind")


@lengths
def test_chaos_on_redis(chaos: Callable[..., Chaos], holdfast_redis_url: str, seconds: float) -> None:
    judge(chaos(holdfast_redis_url, **LEASE), holdfast_redis_url, seconds)


@lengths
def test_chaos_on_files(chaos: Callable[..., Chaos], tmp_path: Path, seconds: float) -> None:
    judge(chaos(f"file://{tmp_path / 'locks'}"), f"file://{tmp_path / 'locks'}", seconds)
