"""``holdfast demo``: real processes race for one counter, without a lock and with one; then a holder is killed."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Final

from .._sync.locks import Locks

_DIGITS: Final = 10
_THINKING: Final = 0.0005


def run(processes: int, updates: int) -> int:
    expected = processes * updates
    print(f"{processes} processes add 1 to the same number, {updates} times each: read it, think, write it back.\n")
    with tempfile.TemporaryDirectory(prefix="holdfast-demo-") as folder:
        lost = {locked: _race(folder, processes, updates, locked=locked) for locked in (False, True)}
        print(f"\nA process is killed (kill -9) while it holds the lock … {_kill_a_holder(folder)}")
    print("\nWhat made the difference:\n\n    locks = Locks.from_url('file:///…')")
    print("    with locks.hold('counter'):\n        …read, think, write…")
    if lost[True]:
        print(f"\n{lost[True]} of {expected} updates were lost under the lock: that is a defect, please report it.")
    return 1 if lost[True] else 0


def _race(folder: str, processes: int, updates: int, *, locked: bool) -> int:
    """Runs the race and tells how it went. Returns how many updates were lost."""
    counter = Path(folder, f"counter-{'with' if locked else 'without'}")
    counter.write_text("0" * _DIGITS)
    expected = processes * updates
    began = time.monotonic()
    label = f"  {'with a lock' if locked else 'without a lock':<15}"
    workers = [_start("work", folder, str(counter), str(updates), str(int(locked))) for _ in range(processes)]
    for worker in workers:
        assert worker.stdout is not None
        worker.stdout.readline()  # all are there before the first begins
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.close()
    while any(worker.poll() is None for worker in workers):
        if sys.stdout.isatty():
            print(f"\r{label} {_bar(int(counter.read_text()), expected)}", end="", flush=True)
        time.sleep(0.02)
    for worker in workers:
        assert worker.stdout is not None
        worker.stdout.close()
        if worker.returncode:
            raise SystemExit(f"a process of the demo failed with code {worker.returncode}")
    arrived = int(counter.read_text())
    lost = expected - arrived
    verdict = f"{lost} updates lost" if lost else "none lost"
    took = f"{time.monotonic() - began:.1f} s"
    print(f"{_rewind()}{label} {_bar(arrived, expected)} {arrived} of {expected} arrived, {verdict} ({took})")
    return lost


def _kill_a_holder(folder: str) -> str:
    holder = _start("hold", folder)
    assert holder.stdout is not None and holder.stdin is not None
    holder.stdout.readline()
    holder.kill()
    killed = time.monotonic()
    with Locks.from_url(Path(folder).as_uri()).hold("counter"):
        passed = time.monotonic() - killed
    holder.wait()
    holder.stdin.close()
    holder.stdout.close()
    return f"the next one is in after {passed * 1000:.1f} ms."


def _bar(done: int, expected: int, width: int = 24) -> str:
    full = round(width * done / expected)
    return "█" * full + "░" * (width - full)


def _rewind() -> str:
    return "\r\x1b[K" if sys.stdout.isatty() else ""


def _start(task: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", "from holdfast.cli.demo import worker; worker()", task, *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def worker() -> None:
    """One of the demo's processes."""
    task, folder, *rest = sys.argv[1:]
    locks = Locks.from_url(Path(folder).as_uri())
    if task == "hold":
        with locks.hold("counter"):
            print("holding", flush=True)
            sys.stdin.read()
        return
    counter, updates, locked = rest
    print("ready", flush=True)
    sys.stdin.read()
    number = os.open(counter, os.O_RDWR)
    for _ in range(int(updates)):
        block: AbstractContextManager[object] = locks.hold("counter") if locked == "1" else nullcontext()
        with block:
            before = int(os.pread(number, _DIGITS, 0))
            time.sleep(_THINKING)
            os.pwrite(number, f"{before + 1:0{_DIGITS}d}".encode(), 0)
