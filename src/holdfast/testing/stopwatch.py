"""How long something took on a machine that may stand still for a while, as busy ones do."""

from __future__ import annotations

import os
import threading
import time
from functools import cache
from typing import Final

_TICK: Final = 0.02
_LONGEST: Final = 0.05
"""More than this between two ticks is not counted: the process, or its whole machine, did not run."""


class _AwakeClock:
    """Advances while this process runs, which a thread that does nothing else finds out."""

    def __init__(self) -> None:
        self._last = time.monotonic(), 0.0
        self._start()
        os.register_at_fork(after_in_child=self._start)  # a forked child has no threads: there it would stand still

    def _start(self) -> None:
        threading.Thread(target=self._tick, name="awake-clock", daemon=True).start()

    def _tick(self) -> None:
        while True:
            time.sleep(_TICK)
            now = time.monotonic()
            self._last = now, self._at(now)

    def _at(self, now: float) -> float:
        before, awake = self._last
        return awake + min(now - before, _LONGEST)

    def read(self) -> float:
        return self._at(time.monotonic())


_awake_clock = cache(_AwakeClock)


class Stopwatch:
    """Runs from when it is made. What must not take longer is held against ``awake``, what must not be shorter
    against ``elapsed``."""

    def __init__(self) -> None:
        self._clock = _awake_clock()
        self.restart()

    def restart(self) -> None:
        self._began = time.monotonic()
        self._began_awake = self._clock.read()

    @property
    def elapsed(self) -> float:
        """Seconds on the clock."""
        return time.monotonic() - self._began

    @property
    def awake(self) -> float:
        """Seconds for which this process ran: a pause of the machine is nobody's delay."""
        return self._clock.read() - self._began_awake
