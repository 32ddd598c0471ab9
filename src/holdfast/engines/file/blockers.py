"""The threads that block in flock, because flock has no time limit and cannot be interrupted.

They are daemons: a process may end while one of them is blocked, and the kernel cleans up. An idle one is kept for a
while, since starting a thread costs more than a hand-over.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from ... import fork

IDLE_SECONDS: Final = 2.0


class _Blocker:
    def __init__(self, work: Callable[[], None]) -> None:
        self.work: Callable[[], None] | None = work
        self.called = threading.Lock()
        self.called.acquire()
        threading.Thread(target=self._run, name="holdfast-flock", daemon=True).start()

    def call(self, work: Callable[[], None]) -> None:
        self.work = work
        self.called.release()

    def _run(self) -> None:
        while self.work is not None:
            self.work()
            self.work = None
            _idle.append(self)
            if not self.called.acquire(timeout=IDLE_SECONDS):
                try:
                    _idle.remove(self)
                except ValueError:  # taken in this very moment: the call is on its way
                    self.called.acquire()


_idle: list[_Blocker] = []


def call(work: Callable[[], None]) -> None:
    """Has ``work``, which must not raise, done in a thread that may block."""
    try:
        blocker = _idle.pop()
    except IndexError:
        _Blocker(work)
    else:
        blocker.call(work)


def _forget_threads() -> None:
    _idle.clear()  # they stayed in the parent


fork.in_child(_forget_threads)
