"""Who is at work on which connection: one at a time, by turns."""

from __future__ import annotations

from functools import partial
from threading import get_ident
from typing import Any

from ...errors import BackendUnavailable
from ...flow import ThreadWakeup, Wakeup
from ...owner import running_loop
from ...ticket import State, Ticket
from .answers import Answers
from .connection import LockConnection
from .lines import Line
from .opening import Opener
from .pilot import Pilot
from .requests import Request, Try


class Duty(Answers):
    """The part of a hub that says who serves a connection."""

    mutex: Any
    shared: list[LockConnection]
    opener: Opener
    max_shared: int

    def choose(self, loop: Any) -> LockConnection | None:
        """The shared connection for a request of a task of ``loop``, or of a thread (None)."""
        best = None
        for connection in self.shared:
            if connection.home is loop:
                if not connection.duty:
                    return connection
                if best is None or len(connection.pending) < len(best.pending):
                    best = connection
        return best if best is not None else self._claim_one(loop)

    def _claim_one(self, loop: Any) -> LockConnection | None:
        for connection in self.shared:
            if connection.is_homeless:
                connection.home = loop
                connection.pilot = None if loop is None else Pilot(connection, loop)
                return connection
        if self.shared and len(self.shared) < self.max_shared:
            self.opener.begin(waits=False, beside_others=True)
        return self.least_busy()

    def least_busy(self) -> LockConnection | None:
        return min(self.shared, key=lambda connection: len(connection.pending) + connection.duty, default=None)

    def is_asked_for(self, line: Line) -> bool:
        """Whether a line that has just been made is on its way to the server."""
        return (
            line in self.wishes.polled
            or line.waits_on is not None
            or any(request.line is line for connection in self.shared for request in connection.pending)
        )

    def queue(self, request: Request, connection: LockConnection | None) -> None:
        if connection is None or connection.broken is not None:
            self._no_connection_for(request)
            return
        request.connection = connection
        if connection.duty:
            request.sleeps = isinstance(request.wakeup, ThreadWakeup)
            self.courier.watch()  # should whoever has the duty have been struck by Ctrl-C before it could begin
        else:
            connection.duty = request.serves = True
        queue = connection.pending.appendleft if request.urgent else connection.pending.append
        queue(request)  # last: what Ctrl-C keeps out of here has not been asked

    def _no_connection_for(self, request: Request) -> None:
        if isinstance(request, Try):
            self.wishes.add(request.line)
        else:
            request.finish(None, BackendUnavailable("the connection to PostgreSQL is gone"))

    def end_duty(self, connection: LockConnection) -> None:
        with self.mutex:
            self.next_duty(connection)

    def next_duty(self, connection: LockConnection) -> None:
        """After a round trip, under the mutex: the first in turn serves the connection, or nobody does."""
        connection.served_by = 0
        pilot = connection.pilot
        if pilot is not None:
            pilot.serves = False
        if connection.pending:
            request = connection.pending[0]
            if request.sleeps and request.wakeup is not None:
                request.offered = True
                request.wakeup.wake()
            elif pilot is None or not pilot.is_for(request.wakeup) or not pilot.begin():
                self.drive_soon(connection)
            return
        connection.duty = False
        if connection.waits and not connection.lines:
            self.wishes.now_idle(connection)

    def arm(self, ticket: Ticket) -> Wakeup | None:
        """For a thread that has made its round trip and has to wait on. None if it need not."""
        with self.mutex:
            return ticket.arm() if ticket.state is State.WAITING and ticket.engine_state is None else None

    def try_polled(self) -> None:
        with self.mutex:
            connection = self.least_busy()
            if connection is None:
                self.opener.begin(waits=False)
            elif not connection.duty:  # else it may still be busy with the last such batch
                self.wishes.try_polled_on(connection)

    def arm_late(self, request: Request) -> None:
        """For a thread that was to serve its request itself, and now waits for another to do so."""
        with self.mutex:
            if not request.done:
                request.wakeup = ThreadWakeup()

    def must_not_wait(self, connection: LockConnection | None) -> bool:
        """Whether this very thread is the one that would have to do what is waited for.

        The garbage collector may end an abandoned block, and so release its lock, in a thread that is at work on the
        connection, or in the courier's.
        """
        here = get_ident()
        return here == self.courier.ident or (connection is not None and connection.served_by == here)

    def takes_over(self, request: Request) -> bool:
        """For a thread that is about to sleep: True if its own event loop, which it stops by that, has the duty.

        Then it is the thread's.
        """
        pilot = request.connection.pilot if request.connection is not None else None
        if pilot is None or not pilot.serves or pilot.loop is not running_loop():
            return False
        with self.mutex:
            request.serves = pilot.retire()
            return request.serves

    def accept_duty(self, request: Request) -> LockConnection | None:
        """The connection that a woken thread was offered to serve, if it was woken for that."""
        with self.mutex:
            request.serves, request.offered = request.offered, False
            return request.connection if request.serves else None

    def claim(self, request: Request, by: int = 0) -> bool:
        """Whether the caller still has the duty that came with its request.

        One that was kept from it for long is taken for gone, and the courier has begun in its place.
        """
        with self.mutex:
            claimed, request.serves = request.serves, False
            if claimed and request.connection is not None:
                request.connection.served_by = by
            return claimed

    def revoke(self, connection: LockConnection) -> None:
        """Under the mutex: whoever has the duty, or was offered it, and did not begin has it no more."""
        for request in connection.pending:
            request.serves = request.offered = False

    def nobody_sleeps(self, request: Request) -> None:
        """The thread that made the request has gone away: it cannot be offered the duty, and passes on what it was."""
        with self.mutex:
            request.sleeps = False
            offered, request.offered = request.offered, False
            connection = request.connection
            if offered and connection is not None and connection.broken is None:
                self.next_duty(connection)

    def serve_task(self, request: Request) -> None:
        """For a task that found the connection free, and so has its duty: its loop's pilot does it, or the courier."""
        connection = request.connection
        assert connection is not None
        with self.mutex:
            pilot = connection.pilot
            if not self.claim(request):
                return
            if pilot is None or not pilot.is_for(request.wakeup) or not pilot.begin():
                self.drive_soon(connection)
            else:
                self.courier.watch()

    def drive_soon(self, connection: LockConnection) -> None:
        """Leaves the connection, and its duty, to its courier."""
        connection.served_by = 0
        courier = connection.hub.courier
        courier.call(partial(courier.drive, connection))

    def serve_soon(self, connection: LockConnection, request: Request) -> None:
        """Under the mutex: has the request served without anybody waiting for it."""
        self.queue(request, connection)
        request.sleeps = False
        if request.serves:
            self.drive_soon(connection)
