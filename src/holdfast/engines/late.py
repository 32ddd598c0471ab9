"""A mutex under which the garbage collector may run.

The collector ends abandoned blocks (a generator's, a dead task's) at any allocation, in whatever thread makes it: also
in one that is inside the engine's mutex. A release that waited for that mutex would wait for its own thread, for ever.
It is put off instead, until the thread has left the mutex.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from threading import RLock
from typing import Any

from ..errors import WouldDeadlock
from ..ticket import Ticket


def refuse_amid(mutex: Any, ticket: Ticket) -> None:
    """A lock cannot be asked for by a finaliser or signal handler that runs in a thread inside the mutex."""
    if mutex._is_owned():
        raise asked_amid(ticket)


def asked_amid(ticket: Ticket) -> WouldDeadlock:
    return WouldDeadlock(f"{ticket.key}: asked for by a finaliser or signal handler amid another", key=ticket.key)


class Late:
    """The mutex, and what was put off."""

    def __init__(self) -> None:
        # Re-entrant only to know its owner. Its `with` is safe from Ctrl-C, as one written in Python would not be.
        self.mutex: Any = RLock()
        self.late: deque[Callable[[], object]] = deque()

    def put_off(self, step: Callable[..., object], *args: object) -> bool:
        """True if this very thread is inside the mutex: then the step is done later."""
        if not self.mutex._is_owned():
            return False
        self.late.append(partial(step, *args))
        return True

    def catch_up(self) -> None:
        """Called by whoever has left the mutex."""
        while self.late:
            try:
                step = self.late.popleft()
            except IndexError:  # another thread was faster
                return
            step()

    def leave_late(self, ticket: Ticket) -> None:
        """A wait's end that was put off."""
        if self.leave(ticket) and ticket.lose("its waiter was gone"):  # granted meanwhile, with nobody to give it back
            self.pass_on(ticket)

    def leave(self, ticket: Ticket) -> bool:
        raise NotImplementedError

    def pass_on(self, ticket: Ticket) -> None:
        raise NotImplementedError

    def start_afresh(self) -> None:
        self.mutex = RLock()
        self.late.clear()
