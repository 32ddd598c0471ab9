"""A process that takes locks on command, for tests that need several: ``python -m holdfast.testing.child TARGET TTL``.

It answers each line on its standard input with one line. Everything about it ends when it is killed.
"""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import ExitStack

from .._sync.blocks import Hold
from .._sync.held import Held
from .._sync.locks import Locks
from ..errors import LockLost
from .target import PATIENCE, TTL, open_engine


class Child:
    """The parent's end."""

    def __init__(self, target: str, *, ttl: float = TTL) -> None:
        """``ttl`` is what it takes its locks for, if they are leases: short, since tests wait for the end of a killed
        one's. Give a long one to a child that is to keep its lock, also when the machine stands still for a while.
        """
        command = [sys.executable, "-m", "holdfast.testing.child", target, str(ttl)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        assert self.answer() == "ready"

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, *words: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\t".join(words) + "\n")
        self._process.stdin.flush()

    def answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().rstrip("\n")

    def ask(self, *words: str) -> str:
        self.send(*words)
        return self.answer()

    def stop(self) -> None:
        """Has it stand still, until it is told to ``go_on``."""
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self.end()

    def end(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.close()
        except BrokenPipeError:
            pass
        self._process.stdout.close()
        self._process.wait()


def _count(locks: Locks, key: str, path: str, times: int) -> None:
    """The lost-update race: read, think, write."""
    for _ in range(times):
        with locks.hold(key, wait=PATIENCE):
            with open(path) as file:
                before = int(file.read())
            with open(path, "w") as file:
                file.write(str(before + 1))


def _crowd(locks: Locks, key: str, path: str) -> None:
    """Four threads that take the lock again as soon as they have released it, and count their grants in the file."""
    file = os.open(path, os.O_RDWR)
    numbers = itertools.count(1)

    def spin() -> None:
        while True:
            with locks.hold(key):
                os.pwrite(file, next(numbers).to_bytes(8, "big"), 0)
                time.sleep(0.001)

    for _ in range(4):
        threading.Thread(target=spin, daemon=True).start()


class _Holder:
    """What the process holds, one lock at a time or several."""

    def __init__(self, locks: Locks) -> None:
        self._locks = locks
        self._stack = ExitStack()
        self._held: list[Held] = []

    def take(self, block: Hold) -> str:
        held = self._stack.enter_context(block)
        self._held.append(held)
        return f"held {held.fence if self._locks.capabilities.fenced else ''}"

    def extend(self, times: int, ttl: float) -> str:
        for _ in range(times):
            self._held[-1].extend(ttl)
        return "extended"

    def detach(self) -> str:
        return self._held[-1].detach()

    def state(self) -> str:
        return "lost" if self._held[-1].lost else "held"

    def release(self) -> str:
        try:
            self._stack.close()
        except LockLost:
            return "lost"
        return "released"


def main(target: str, lease: float) -> None:
    engine = open_engine(target)
    locks = Locks(engine, ttl=lease if engine.capabilities.expiring else None)
    holder = _Holder(locks)
    print("ready", flush=True)
    for line in sys.stdin:
        match line.rstrip("\n").split("\t"):
            case ["count", key, path, times]:
                _count(Locks(engine), key, path, int(times))  # nobody waits for the end of its leases
                print("done", flush=True)
            case ["crowd", key, path]:
                _crowd(locks, key, path)
            case ["hold", key]:
                print(holder.take(locks.hold(key)), flush=True)
            case ["hold-pair", namespace, entity]:
                print(holder.take(locks.hold(int(namespace), int(entity))), flush=True)
            case ["hold", key, owner]:
                print(holder.take(locks.hold(key, owner=owner)), flush=True)
            case ["attach", token]:
                print(holder.take(locks.attach(token)), flush=True)
            case ["extend", times, ttl]:
                print(holder.extend(int(times), float(ttl)), flush=True)
            case ["detach"]:
                print(holder.detach(), flush=True)
            case ["state"]:
                print(holder.state(), flush=True)
            case ["release"]:
                print(holder.release(), flush=True)
            case ["try", key]:
                with locks.try_hold(key) as handle_or_none:
                    print("busy" if handle_or_none is None else "free", flush=True)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
