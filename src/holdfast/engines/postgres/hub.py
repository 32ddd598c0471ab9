"""The connections of this process to one address, and who may use them when.

Everything here runs under one mutex, which is also that of the lines, and never waits. Connections are opened in
threads of their own, since opening one blocks.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import Any, Final

import psycopg

from ... import fork
from ...errors import BackendUnavailable, LockError
from ...flow import Wakeup
from ...keys import PgKey
from ...ticket import Ticket
from .connect import Identity, open_connection
from .connection import LockConnection
from .courier import Courier
from .lines import HANDOVERS, Line, Lines, lines_of
from .requests import Kind, Request

_WAIT_AGAIN: Final = ("55P03", "57014", "40P01")
"""Lock timeout, cancelled, chosen by the dead-lock detector: nothing is wrong with the wait itself."""


class Busy(Exception):
    """Put on a ticket that tried once and found the lock taken."""


class Hub:
    def __init__(
        self,
        connect: Callable[[], psycopg.Connection[Any]],
        *,
        pooler: str | None,
        max_connections: int,
        max_waiting: int,
    ) -> None:
        self._connect = connect
        self._pooler = pooler
        self._max_shared = max_connections
        self._max_waiting = max_waiting
        self._begin()
        fork.in_child(self._start_afresh)

    def _begin(self) -> None:
        self.lines = Lines()  # until the first connection says which database it is
        self.mutex = self.lines.mutex
        self.identity: Identity | None = None
        self.shared: list[LockConnection] = []
        self.waiters: list[LockConnection] = []
        self._idle_waiters: list[LockConnection] = []
        self.polled: OrderedDict[Line, None] = OrderedDict()
        """Lines for which no connection is left to wait: they are tried together now and then."""
        self._courier: Courier | None = None
        self._opening = threading.Lock()
        self._openings: dict[bool, list[Wakeup]] = {}
        self._open_error: BaseException | None = None
        self._closed = False

    # Opening

    @property
    def usable(self) -> bool:
        return bool(self.shared)

    def open_in_background(self, *, waits: bool, wakeup: Wakeup | None = None) -> None:
        """Opens a connection in a thread, unless one is being opened; ``wakeup`` is told when that has ended."""
        with self._opening:
            if self._closed:
                return
            began = waits in self._openings
            sleepers = self._openings.setdefault(waits, [])
            if wakeup is not None:
                sleepers.append(wakeup)
        if not began:
            threading.Thread(target=self._open, args=(waits,), name="holdfast-connect", daemon=True).start()

    def take_open_error(self) -> BaseException | None:
        error, self._open_error = self._open_error, None
        return error

    def _open(self, waits: bool) -> None:
        error: BaseException | None = None
        try:
            opened = open_connection(self._connect, pooler=self._pooler, listens=not waits)
            self._add(LockConnection(self, opened.connection, waits=waits), opened.identity)
        except (LockError, psycopg.Error, OSError) as failure:
            error = failure
        with self._opening:
            if not waits:
                self._open_error = error
            sleepers = self._openings.pop(waits)
        if error is not None and not waits:
            self._fail_all_wanted(error)
        for wakeup in sleepers:
            wakeup.wake()

    def _add(self, connection: LockConnection, identity: Identity) -> None:
        if self.identity is None:
            self.identity = identity
            self.lines = lines_of(identity)
            self.mutex = self.lines.mutex
        with self.mutex:
            if self._courier is None:
                self._courier = Courier(self)
            if self._closed:
                connection.close()
            elif connection.waits:
                self.waiters.append(connection)
                self._now_idle(connection)
            else:
                self.shared.append(connection)

    @property
    def courier(self) -> Courier:
        assert self._courier is not None
        return self._courier

    # A caller's way in and out

    def join(self, ticket: Ticket, key: PgKey) -> Request | None:
        """Puts the ticket into its line. The request to the server if it is the first there, else None."""
        with self.mutex:
            line = self.lines.join(ticket, key)
            if line is None:
                return None
            line.wanted = True
            request = Request(Kind.TRY, line)
            request.wakeup = ticket.wakeup
            return request

    def leave(self, ticket: Ticket, key: PgKey, request: Request | None) -> bool:
        """Ends the ticket's wait. True if it has been granted the lock meanwhile."""
        with self.mutex:
            if request is not None:
                request.can_serve = False
                if request.offered:
                    self._pass_duty_on(request)
            if ticket.held:
                return True
            line = self.lines.by_key.get(key)
            if line is not None and line.waiting.pop(ticket, self) is None and not line.waiting:
                self._stop_wanting(line)
            return False

    def release(self, ticket: Ticket, key: PgKey) -> tuple[LockConnection, Request] | None:
        """Hands the lock on inside the process, or gives what is to be asked of its connection."""
        with self.mutex:
            line = self.lines.by_key.get(key)
            if line is None or line.holder is not ticket or line.connection is None:
                return None
            if line.handovers < HANDOVERS and line.waiting and line.hand_to_next():
                line.handovers += 1
                return None
            line.holder = None
            line.wanted = True
            return line.connection, Request(Kind.UNLOCK, line)

    def _choose(self) -> LockConnection | None:
        """The shared connection for the next try."""
        idle = [connection for connection in self.shared if not connection.duty]
        if idle:
            return idle[0]
        return min(self.shared, key=lambda connection: len(connection.pending), default=None)

    def submit(self, request: Request, connection: LockConnection | None = None) -> LockConnection | None:
        """Queues the request, on any shared connection unless one is given. Returns it if the caller is to serve it."""
        with self.mutex:
            connection = connection or self._choose()
            if connection is None or connection.broken is not None:
                self._no_connection_for(request)
                return None
            connection.pending.append(request)
            if connection.duty:
                return None
            connection.duty = True
            return connection

    def _no_connection_for(self, request: Request) -> None:
        line = request.line
        if request.kind is Kind.TRY and line is not None:
            self._want(line)
        else:
            request.finish(None, BackendUnavailable("the connection to PostgreSQL is gone"))

    # Duty

    def end_duty(self, connection: LockConnection) -> None:
        """After a round trip: the next in turn serves the connection, or nobody does."""
        with self.mutex:
            self._next_duty(connection)

    def _next_duty(self, connection: LockConnection) -> None:
        if connection.pending:
            request = connection.pending[0]
            if request.can_serve and request.wakeup is not None:
                request.offered = True
                request.result = connection
                request.wakeup.wake()
            else:
                self.courier.call(partial(self.courier.drive, connection))
            return
        connection.duty = False
        if connection.waits and not connection.lines:
            self._now_idle(connection)

    def _pass_duty_on(self, request: Request) -> None:
        connection: LockConnection = request.result
        request.offered = False
        if connection.broken is None:
            self._next_duty(connection)

    def accept_duty(self, request: Request) -> LockConnection | None:
        """The connection that a woken thread was offered to serve, if it was woken for that."""
        with self.mutex:
            if not request.offered:
                return None
            request.offered = False
            connection: LockConnection = request.result
            return connection

    def _serve_soon(self, connection: LockConnection, request: Request) -> None:
        connection.pending.append(request)
        if not connection.duty:
            connection.duty = True
            self.courier.call(partial(self.courier.drive, connection))

    # What the server answered. All of these run under the mutex.

    def tried(self, connection: LockConnection, request: Request, granted: bool) -> None:
        line = request.line
        assert line is not None
        request.done = True
        line.wanted = False
        if granted:
            self._got(connection, line)
            return
        for ticket in [ticket for ticket in line.waiting if not ticket.waits]:
            del line.waiting[ticket]
            ticket.engine_state = Busy()
            assert ticket.wakeup is not None
            ticket.wakeup.wake()
        self._want_or_drop(line)

    def try_failed(self, request: Request, code: str, message: str) -> None:
        assert request.line is not None
        request.done = True
        request.line.wanted = False
        if code == "57014":
            self._want_or_drop(request.line)
        else:
            self._fail(request.line, _server_error(code, message))

    def wait_granted(self, connection: LockConnection, line: Line) -> None:
        line.waits_on, line.wanted = None, False
        self._got(connection, line)

    def wait_failed(self, connection: LockConnection, line: Line, code: str, message: str) -> None:
        line.waits_on, line.wanted = None, False
        if code in _WAIT_AGAIN:
            self._want_or_drop(line)
        else:
            self._fail(line, _server_error(code, message))

    def unlocked(self, connection: LockConnection, request: Request, was_held: bool) -> None:
        line = request.line
        assert line is not None
        connection.lines.pop(line.key, None)
        line.connection, line.wanted = None, False
        request.finish(was_held)
        self._want_or_drop(line)

    def _got(self, connection: LockConnection, line: Line) -> None:
        connection.lines[line.key] = line
        line.connection = connection
        line.handovers = 0
        self.courier.watch()
        if not line.hand_to_next():
            line.wanted = True
            self._serve_soon(connection, Request(Kind.UNLOCK, line))

    # Waiting at the server

    def _want_or_drop(self, line: Line) -> None:
        if line.waiting:
            self._want(line)
        else:
            self.lines.drop_if_unused(line)

    def _want(self, line: Line) -> None:
        line.wanted = True
        if self._idle_waiters:
            self._wait_on(self._idle_waiters.pop(), line)
            return
        self.polled[line] = None
        if len(self.waiters) < self._max_waiting:
            self.open_in_background(waits=True)
        self.courier.watch()

    def _wait_on(self, connection: LockConnection, line: Line) -> None:
        connection.duty = True
        line.waits_on = connection
        self.courier.call(partial(self.courier.stand_in_queue, connection, line))

    def _now_idle(self, connection: LockConnection) -> None:
        if self.polled:
            line, _ = self.polled.popitem(last=False)
            self._wait_on(connection, line)
        else:
            self._idle_waiters.append(connection)

    def _stop_wanting(self, line: Line) -> None:
        """Nobody here waits for the lock any more."""
        if line in self.polled:
            del self.polled[line]
            line.wanted = False
        elif line.waits_on is not None and self.shared:
            pid = b"%d" % line.waits_on.pid
            self._serve_soon(self.shared[0], Request(Kind.ASK, statement="cancel", parameters=(pid,)))
        self.lines.drop_if_unused(line)

    def try_polled(self) -> None:
        """Tries all lines that have no connection to wait on, together."""
        if not self.polled:
            return
        with self.mutex:
            connection = self._choose()
            if connection is None:
                self.open_in_background(waits=False)
                return
            if connection.pending or connection.duty:
                return  # it is busy with what may be the last such batch
            while self.polled:
                line, _ = self.polled.popitem(last=False)
                self._serve_soon(connection, Request(Kind.TRY, line))

    # Failure and loss

    def _fail(self, line: Line, error: BaseException) -> None:
        while line.waiting:
            ticket, _ = line.waiting.popitem()
            ticket.engine_state = error
            assert ticket.wakeup is not None
            ticket.wakeup.wake()
        self.lines.drop_if_unused(line)

    def _fail_all_wanted(self, error: BaseException) -> None:
        with self.mutex:
            while self.polled:
                line, _ = self.polled.popitem()
                line.wanted = False
                self._fail(line, error)

    def broke(self, connection: LockConnection, error: BaseException) -> None:
        """The connection is gone, and with it all that was held on it."""
        with self.mutex:
            lost = self._take_apart(connection, error)
        for ticket in lost:
            ticket.lose(f"its connection to PostgreSQL broke: {str(error).partition(chr(10))[0]}")
        connection.close()

    def _take_apart(self, connection: LockConnection, error: BaseException) -> list[Ticket]:
        if connection.broken is not None:
            return []
        connection.broken = error
        for connections in (self.shared, self.waiters, self._idle_waiters):
            if connection in connections:
                connections.remove(connection)
        requests = [*connection.in_flight, *connection.pending]
        connection.pending.clear()
        for request in requests:
            self._give_up(connection, request, error)
        lost = []
        for line in [*connection.lines.values()]:
            if line.holder is not None:
                lost.append(line.holder)
            line.holder = line.connection = None
            line.wanted = False
            self._want_or_drop(line)
        connection.lines.clear()
        for line in [line for line in self.lines.by_key.values() if line.waits_on is connection]:
            line.waits_on, line.wanted = None, False
            self._want_or_drop(line)
        return lost

    def _give_up(self, connection: LockConnection, request: Request, error: BaseException) -> None:
        line = request.line
        if request.done:
            return
        if line is not None:
            connection.lines.pop(line.key, None)
            line.connection, line.wanted = None, False
            if request.kind is Kind.TRY:
                request.done = True
            self._want_or_drop(line)
        if request.kind is not Kind.TRY:
            request.finish(None, error)

    def look_at_idle_connections(self) -> bool:
        """Notices lost connections. Returns whether there is anything to look after."""
        with self.mutex:
            connections = [*self.shared, *self.waiters]
            busy = bool(self.polled) or any(connection.lines or connection.duty for connection in connections)
            # What holds nothing can be lost without harm; it is found out when it is used.
            idle = [connection for connection in connections if connection.lines and not connection.duty]
            for connection in idle:
                connection.duty = True
        for connection in idle:
            try:
                connection.look()
            except psycopg.Error as error:
                self.broke(connection, error)
            else:
                self.end_duty(connection)
        return busy

    def asked_to_evict(self, payload: str) -> None:
        """Another client asks for a key to be given up."""
        classid, _, objid = payload.partition(":")
        key = PgKey(int(classid) if classid else None, int(objid))
        self.courier.call(partial(self.evict_here, key))

    def evict_here(self, key: PgKey) -> bool:
        """Takes the lock from its holder in this process, if there is one. Does not wait for the server."""
        line = self.lines.by_key.get(key)
        ticket = line.holder if line is not None else None
        if ticket is None or not ticket.lose("it was evicted"):
            return False
        leftover = self.release(ticket, key)
        if leftover is not None:
            connection, request = leftover
            if self.submit(request, connection) is not None:
                self.courier.call(partial(self.courier.drive, connection))
        return True

    # The end

    def close(self) -> None:
        with self._opening:
            self._closed = True
        if self._courier is not None:
            self._courier.stop()
        with self.mutex:
            connections = [*self.shared, *self.waiters]
            self.shared, self.waiters, self._idle_waiters = [], [], []
        for connection in connections:
            connection.close()

    def _start_afresh(self) -> None:
        for connection in (*self.shared, *self.waiters):
            connection.abandon_in_child()
        self._begin()


def _server_error(code: str, message: str) -> BackendUnavailable:
    first_line = message.partition("\n")[0]
    if code == "53200":
        return BackendUnavailable(f"PostgreSQL's lock table is full; raise max_locks_per_transaction ({first_line})")
    return BackendUnavailable(f"PostgreSQL refused the lock: {first_line} (SQLSTATE {code})")
