"""Who is at work on which connection: one at a time, by turns."""

from __future__ import annotations

from functools import partial
from threading import get_ident
from typing import Any

from ...errors import BackendUnavailable
from ...flow import ThreadWakeup
from ...owner import running_loop
from .answers import Answers
from .connection import LockConnection
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

    def queue(self, request: Request, connection: LockConnection | None) -> None:
        if connection is None or connection.broken is not None:
            self._no_connection_for(request)
            return
        request.connection = connection
        connection.pending.append(request)
        if connection.duty:
            request.sleeps = isinstance(request.wakeup, ThreadWakeup)
            self.courier.watch()  # should whoever has the duty have been struck by Ctrl-C before it could begin
        else:
            connection.duty = request.serves = True

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

    def must_not_wait(self, connection: LockConnection | None) -> bool:
        """Whether this very thread is the one that would have to do what is waited for.

        The garbage collector may end an abandoned block, and so release its lock, in a thread that is at work on the
        connection, or in the courier's.
        """
        here = get_ident()
        return here == self.courier.ident or (connection is not None and connection.served_by == here)

    def takes_over(self, connection: LockConnection | None) -> bool:
        """For a thread that is about to sleep: True if its own event loop, which it stops by that, has the duty.

        Then it is the thread's.
        """
        pilot = connection.pilot if connection is not None else None
        return pilot is not None and pilot.serves and pilot.loop is running_loop() and pilot.retire()

    def accept_duty(self, request: Request) -> LockConnection | None:
        """The connection that a woken thread was offered to serve, if it was woken for that."""
        with self.mutex:
            offered, request.offered = request.offered, False
            return request.connection if offered else None

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
        request.serves = False
        pilot = connection.pilot
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
