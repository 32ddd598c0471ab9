"""Processes that fork with locks held: ``python -m holdfast.testing.forked SCENARIO TARGET KEY``. See the contract."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable

from .._sync.locks import Locks
from ..errors import NotHeld
from .target import PATIENCE, open_engine, short_ttl


def child_owns_nothing(locks: Locks, key: str) -> None:
    may_go_on, parent_released = os.pipe()
    with locks.hold(key) as held:
        child = os.fork()
        if child == 0:
            for name, use in (("release", held.release), ("check", held.check)):
                try:
                    use()
                except NotHeld:
                    _say(f"child: {name} refused")
        else:
            held.check()
            if _tried_in_thread(locks, key) is None:
                _say("parent: still holds")
    if child == 0:
        _say("child: left the block in silence")
        os.close(parent_released)
        os.read(may_go_on, 1)
        with locks.hold(key, wait=PATIENCE):
            _say("child: took the lock as its own")
        os._exit(0)
    _say("parent: released" if _tried_in_thread(locks, key) else "parent: did not release")
    os.close(parent_released)
    os.waitpid(child, 0)


def fork_in_a_crowd(locks: Locks, key: str) -> None:
    stop = threading.Event()

    def keep_locking(number: int) -> None:
        while not stop.is_set():
            with locks.hold(f"{key}-{number % 2}"):
                pass

    threads = [threading.Thread(target=keep_locking, args=(number,), daemon=True) for number in range(4)]
    for thread in threads:
        thread.start()
    worked = 0
    for _ in range(20):
        child = os.fork()
        if child == 0:
            with locks.hold(f"{key}-of-child", wait=PATIENCE):
                pass
            os._exit(7)
        worked += _exit_code(child) == 7
    stop.set()
    for thread in threads:
        thread.join(PATIENCE)
    _say(f"{worked} children worked")


def outlive_the_parent(locks: Locks, key: str) -> None:
    with locks.hold(key):
        if os.fork() == 0:
            _say("held, and forked")
            sys.stdin.read()  # until whoever started us lets go
            os._exit(0)
        time.sleep(PATIENCE)  # to be killed


def _tried_in_thread(locks: Locks, key: str) -> object:
    found: list[object] = []

    def attempt() -> None:
        with locks.try_hold(key) as held:
            found.append(held)

    thread = threading.Thread(target=attempt)
    thread.start()
    thread.join(PATIENCE)
    return found[0]


def _exit_code(child: int) -> int:
    deadline = time.monotonic() + PATIENCE / 2
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(child, 9)
    os.waitpid(child, 0)
    return -1


def _say(line: str) -> None:
    os.write(1, f"{line}\n".encode())  # past any buffer that a fork would duplicate


SCENARIOS: dict[str, Callable[[Locks, str], None]] = {
    scenario.__name__: scenario for scenario in (child_owns_nothing, fork_in_a_crowd, outlive_the_parent)
}

if __name__ == "__main__":
    engine, scenario = open_engine(sys.argv[2]), SCENARIOS[sys.argv[1]]
    ttl = short_ttl(engine) if scenario is outlive_the_parent else None
    scenario(Locks(engine, ttl=ttl), sys.argv[3])
