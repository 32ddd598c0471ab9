"""What is asked of a lock connection. Each request is an effect: a thread blocks in it, a task suspends in it.

Requests that come in while a round trip is under way go out together in the next one. A thread that finds the
connection free serves it itself, one batch, with what others have asked meanwhile: no other thread has to be woken for
an uncontended lock. A thread that finds it busy sleeps, and may be offered the duty when the batch under way has ended.
A task leaves the work to the courier.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, Any, Final

from ...deadline import Deadline
from ...flow import TaskWakeup, ThreadWakeup, Wakeup
from ...ticket import State, Ticket
from .lines import Line

if TYPE_CHECKING:
    from .connection import LockConnection
    from .hub import Hub

_NEVER: Final = Deadline()
ANSWER_SECONDS: Final = 15.0
"""How long an answer is waited for that the server gives at once, if it gives any."""


class Request:
    """Guarded by the hub's mutex until it is done. Defaults are the class's: two are made for every lock."""

    line: Line | None = None
    wakeup: Wakeup | None = None
    deadline: Deadline = _NEVER
    connection: LockConnection | None = None
    """Where it is queued. None if there was no connection to be had."""
    serves = False
    """Whether the caller found the connection free and has its duty."""
    sleeps = False
    """Whether a thread sleeps at ``wakeup`` that can be offered the duty."""
    offered = False
    urgent = False
    """Whether it goes out before what others have asked."""
    done = False
    result: Any = None
    error: BaseException | None = None

    def __init__(self, hub: Hub) -> None:
        self._hub = hub

    @property
    def settled(self) -> bool:
        """Whether the caller has what it came for."""
        return self.done

    def finish(self, result: Any, error: BaseException | None = None) -> None:
        self.result, self.error, self.done = result, error, True
        if self.wakeup is not None:
            self.wakeup.wake()

    def serve(self) -> None:
        """In the caller's thread, which found the connection free and has its duty."""
        assert self.connection is not None
        self.connection.serve_in_thread(self)

    def block(self) -> None:
        if self.serves:
            self.serve()
        try:
            while not self.settled and not self.deadline.passed:
                if self._hub.takes_over(self):
                    assert self.connection is not None
                    self.connection.serve_in_thread(self)
                    continue
                if self.wakeup is None or self._hub.must_not_wait(self.connection):
                    return
                self.wakeup.sleep(self.deadline).block()
                connection = self._hub.accept_duty(self) if self.offered else None
                if connection is not None:
                    connection.serve_in_thread(self)
        finally:
            if self.sleeps:  # left at the deadline, or by Ctrl-C
                self._hub.nobody_sleeps(self)

    def suspend(self) -> Awaitable[Any]:
        if self.serves:
            self._hub.serve_task(self)
        assert self.wakeup is not None  # woken when it is settled
        return self.wakeup.sleep(self.deadline).suspend()


class Try(Request):
    """For a line: whoever is first in it when the answer comes gets the lock."""

    line: Line

    def __init__(self, hub: Hub, line: Line, ticket: Ticket | None = None) -> None:
        self._hub = hub
        self.line = line
        self.ticket = ticket
        if ticket is not None:
            self.wakeup = ticket.wakeup
            # A try does not wait for the lock, but it does wait for the answer.
            self.deadline = ticket.deadline if ticket.wait != 0 else Deadline.after(ANSWER_SECONDS)

    @property
    def settled(self) -> bool:
        ticket = self.ticket
        return ticket is None or ticket.state is not State.WAITING or ticket.engine_state is not None

    def block(self) -> None:
        if self.serves:
            self.serve()
        if self.wakeup is None and self.ticket is not None:
            self.wakeup = self._hub.arm(self.ticket)
        super().block()


class Unlock(Request):
    line: Line
    _answer_by: Deadline | None = None

    def __init__(self, hub: Hub, line: Line) -> None:
        self._hub = hub
        self.line = line

    def block(self) -> None:
        if self.serves:
            self.serve()
        if self.wakeup is None:
            self._hub.arm_late(self)
        super().block()

    @property
    def deadline(self) -> Deadline:  # type: ignore[override]
        # Made when the answer does not come at once, which is seldom. Not by cached_property, which takes a mutex.
        if self._answer_by is None:
            self._answer_by = Deadline.after(ANSWER_SECONDS)
        return self._answer_by


class Ask(Request):
    """Any other statement. It is queued only when it is driven, which tells a thread's sleep from a task's."""

    def __init__(
        self,
        hub: Hub,
        statement: str,
        parameters: Sequence[bytes | None],
        deadline: Deadline = _NEVER,
        connection: LockConnection | None = None,
    ) -> None:
        super().__init__(hub)
        self.deadline = deadline
        self.statement = statement
        self.parameters = parameters
        self._anywhere = connection is None
        self.connection = connection

    def block(self) -> None:
        self.wakeup = ThreadWakeup()
        self._hub.enqueue(self, None, anywhere=self._anywhere)
        super().block()

    def suspend(self) -> Awaitable[Any]:
        if self.wakeup is None:
            self.wakeup = wakeup = TaskWakeup()
            self._hub.enqueue(self, wakeup.loop, anywhere=self._anywhere)
        return super().suspend()
