"""Opening lock connections in threads of their own, since opening one blocks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from ...deadline import Deadline
from ...errors import BackendUnavailable, LockError
from ...flow import TaskWakeup, ThreadWakeup, Wakeup
from .connect import Opened

_PAUSE: Final = 1.0
"""Seconds before one more connection is asked for where others can do: the server may have none left."""


class Opener:
    """Opens one connection of a kind at a time; whoever waits for it sleeps at a wakeup."""

    def __init__(
        self,
        open_one: Callable[[bool], Opened],
        opened: Callable[[Opened, bool], None],
        failed: Callable[[BaseException, bool], None],
    ) -> None:
        self._open_one = open_one
        self._opened = opened
        self._failed = failed
        # Re-entrant: the garbage collector may end an abandoned block in a thread that is in here.
        self._mutex = threading.RLock()
        self._sleepers: dict[bool, list[Wakeup]] = {}
        self._not_before = 0.0
        self._closed = False
        self.error: BaseException | None = None
        """What went wrong with the last shared connection."""

    def begin(self, *, waits: bool, wakeup: Wakeup | None = None, beside_others: bool = False) -> bool:
        """Opens a connection, shared or to wait on, unless that is under way. ``wakeup`` is told when it has ended.

        False if it is closed.
        """
        with self._mutex:
            if self._closed:
                return False
            if (waits or beside_others) and time.monotonic() < self._not_before:
                return True
            under_way = waits in self._sleepers
            sleepers = self._sleepers.setdefault(waits, [])
            if wakeup is not None:
                sleepers.append(wakeup)
        if not under_way:
            threading.Thread(target=self._open, args=(waits,), name="holdfast-connect", daemon=True).start()
        return True

    def close(self) -> None:
        with self._mutex:
            self._closed = True
            sleepers = [wakeup for wakeups in self._sleepers.values() for wakeup in wakeups]
        for wakeup in sleepers:
            wakeup.wake()

    def _open(self, waits: bool) -> None:
        error: BaseException | None = None
        try:
            self._opened(self._open_one(waits), waits)
        except Exception as failure:
            error = failure if isinstance(failure, LockError) else BackendUnavailable(f"cannot connect: {failure!r}")
            self._failed(error, waits)
        with self._mutex:
            if not waits:
                self.error = error
            if error is not None:
                self._not_before = time.monotonic() + _PAUSE
            sleepers = self._sleepers.pop(waits)
        for wakeup in sleepers:
            wakeup.wake()


class Opening:
    """The effect of waiting until a shared connection was opened, or could not be."""

    begun = False
    """False if the opener is closed."""

    def __init__(self, opener: Opener, deadline: Deadline) -> None:
        self._opener = opener
        self._deadline = deadline

    def block(self) -> None:
        wakeup = ThreadWakeup()
        self.begun = self._opener.begin(waits=False, wakeup=wakeup)
        if self.begun:
            wakeup.sleep(self._deadline).block()

    async def suspend(self) -> None:
        wakeup = TaskWakeup()
        self.begun = self._opener.begin(waits=False, wakeup=wakeup)
        if self.begun:
            await wakeup.sleep(self._deadline).suspend()
