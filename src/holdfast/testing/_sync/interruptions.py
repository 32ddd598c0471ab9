"""Ctrl-C while waiting, and forks with locks held."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

import pytest

from ..target import PATIENCE
from .crew import Crew, Flag, open_locks
from .part import Part, until_waiting


class Interruptions(Part):
    def test_ctrl_c_in_a_wait_leaves_nothing(self, target: str, key: str) -> None:
        assert threading.current_thread() is threading.main_thread()
        with open_locks(target) as locks, Crew() as crew:
            for _ in range(5):
                inside, finish = Flag(), Flag()

                def hold(inside: Flag = inside, finish: Flag = finish) -> None:
                    with locks.hold(key):
                        inside.raise_()
                        finish.wait()

                def press_ctrl_c() -> None:
                    until_waiting(locks, key)
                    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

                holder = crew.start(hold)
                inside.wait()
                crew.start(press_ctrl_c)
                with pytest.raises(KeyboardInterrupt):
                    locks.hold(key).__enter__()
                finish.raise_()
                holder.result()
                with locks.hold(key, wait=PATIENCE):
                    pass

    def test_a_forked_child_owns_nothing_and_starts_afresh(self, target: str, key: str) -> None:
        said = self._forked("child_owns_nothing", target, key)
        assert [line for line in said if line.startswith("parent")] == ["parent: still holds", "parent: released"]
        assert [line for line in said if line.startswith("child")] == [
            "child: release refused",
            "child: check refused",
            "child: left the block in silence",
            "child: took the lock as its own",
        ]

    def test_a_fork_while_other_threads_lock_leaves_no_mutex_shut(self, target: str, key: str) -> None:
        assert self._forked("fork_in_a_crowd", target, key) == ["20 children worked"]

    def test_a_child_does_not_keep_the_lock_of_its_killed_parent(self, target: str, key: str) -> None:
        with open_locks(target) as locks:
            if locks.capabilities.scope == "process":
                return  # the lock is gone with the process that was its whole world
            process = self._start("outlive_the_parent", target, key)
            assert process.stdout is not None and process.stdin is not None
            try:
                assert process.stdout.readline() == "held, and forked\n"
                process.kill()
                process.wait()
                with locks.hold(key, wait=PATIENCE):
                    pass
            finally:
                process.kill()
                process.wait()
                process.stdin.close()  # the child that lived on reads this to its end
                process.stdout.close()

    def _start(self, scenario: str, target: str, key: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-W", "ignore", "-m", "holdfast.testing.forked", scenario, target, key]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def _forked(self, scenario: str, target: str, key: str) -> list[str]:
        output, _ = self._start(scenario, target, key).communicate(timeout=PATIENCE)
        return output.splitlines()
