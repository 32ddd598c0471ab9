"""What is asked of a lock connection. Each request is an effect: a thread blocks in it, a task suspends in it.

Requests that come in while a round trip is under way go out together in the next one. A thread that finds the
connection free serves it itself, one batch, with what others have asked meanwhile: no other thread has to be woken for
an uncontended lock. A thread that finds it busy sleeps, and may be offered the duty when the batch under way has ended.
A task leaves the work to the courier.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ...deadline import Deadline
from ...flow import TaskWakeup, ThreadWakeup, Wakeup
from ...ticket import Ticket
from .lines import Line

if TYPE_CHECKING:
    from .connection import LockConnection
    from .hub import Hub

_NEVER = Deadline()


class Request:
    """Guarded by the hub's mutex until it is done."""

    __slots__ = ("_hub", "connection", "deadline", "done", "error", "offered", "result", "serves", "sleeps", "wakeup")

    def __init__(self, hub: Hub, wakeup: Wakeup | None = None, deadline: Deadline = _NEVER) -> None:
        self._hub = hub
        self.wakeup = wakeup
        self.deadline = deadline
        self.connection: LockConnection | None = None
        """Where it is queued. None if there was no connection to be had."""
        self.serves = False
        """Whether the caller found the connection free and has its duty."""
        self.sleeps = False
        """Whether a thread sleeps at ``wakeup`` that can be offered the duty."""
        self.offered = False
        self.done = False
        self.result: Any = None
        self.error: BaseException | None = None

    @property
    def settled(self) -> bool:
        """Whether the caller has what it came for."""
        return self.done

    def finish(self, result: Any, error: BaseException | None = None) -> None:
        self.result, self.error, self.done = result, error, True
        if self.wakeup is not None:
            self.wakeup.wake()

    def block(self) -> None:
        try:
            if self.serves:
                assert self.connection is not None
                self.connection.serve_in_thread(self.deadline, alone=self)
            while not self.settled and not self.deadline.passed:
                assert self.wakeup is not None
                self.wakeup.sleep(self.deadline).block()
                connection = self._hub.accept_duty(self) if self.offered else None
                if connection is not None:
                    connection.serve_in_thread(self.deadline)
        finally:
            if not self.done:  # left at the deadline, or by Ctrl-C
                self._hub.nobody_sleeps(self)

    async def suspend(self) -> None:
        if self.serves:
            assert self.connection is not None
            self._hub.drive_soon(self.connection)
        if not self.settled:
            assert self.wakeup is not None
            await self.wakeup.sleep(self.deadline).suspend()


class Try(Request):
    """For a line: whoever is first in it when the answer comes gets the lock."""

    __slots__ = ("line", "ticket")

    def __init__(self, hub: Hub, line: Line, ticket: Ticket | None, deadline: Deadline = _NEVER) -> None:
        super().__init__(hub, ticket.wakeup if ticket is not None else None, deadline)
        self.line = line
        self.ticket = ticket

    @property
    def settled(self) -> bool:
        ticket = self.ticket
        return ticket is None or ticket.held or ticket.engine_state is not None


class Unlock(Request):
    __slots__ = ("line",)

    def __init__(self, hub: Hub, line: Line, wakeup: Wakeup | None = None, deadline: Deadline = _NEVER) -> None:
        super().__init__(hub, wakeup, deadline)
        self.line = line


class Ask(Request):
    """Any other statement. It is queued only when it is driven, which tells a thread's sleep from a task's."""

    __slots__ = ("_anywhere", "parameters", "statement")

    def __init__(
        self,
        hub: Hub,
        statement: str,
        parameters: Sequence[bytes],
        deadline: Deadline = _NEVER,
        connection: LockConnection | None = None,
    ) -> None:
        super().__init__(hub, None, deadline)
        self.statement = statement
        self.parameters = parameters
        self._anywhere = connection is None
        self.connection = connection

    def block(self) -> None:
        self.wakeup = ThreadWakeup()
        self._hub.enqueue(self, anywhere=self._anywhere)
        super().block()

    async def suspend(self) -> None:
        self.wakeup = TaskWakeup()
        self._hub.enqueue(self, anywhere=self._anywhere)
        await super().suspend()
