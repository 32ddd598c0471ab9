"""The connections of this process to one address: who is served on which, and what becomes of the server's answers.

Everything here runs under one mutex, which is also that of the lines, and never waits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from threading import Thread
from typing import Any

import psycopg

from ... import fork
from ...deadline import Deadline
from ...errors import BackendUnavailable, ClientClosed
from ...flow import Flow, ThreadWakeup, Wakeup
from ...keys import PgKey
from ...owner import running_loop
from ...ticket import State, Ticket
from ..late import refuse_amid
from .connect import PREPARED, Identity, Opened, open_connection
from .connection import LockConnection
from .courier import Courier
from .duty import Duty
from .lines import HANDOVERS, Line, Lines, lines_of
from .opening import Opener, Opening
from .requests import Ask, Try, Unlock
from .wishes import Wishes


class Hub(Duty):
    def __init__(
        self,
        connect: Callable[[], psycopg.Connection[Any]],
        *,
        pooler: str | None,
        max_connections: int,
        max_waiting: int,
        statements: Mapping[str, bytes] = PREPARED,
    ) -> None:
        self._connect = connect
        self._statements = statements
        self._pooler = pooler
        self.max_shared = max_connections
        self._max_waiting = max_waiting
        self._begin()
        fork.in_child(self._start_afresh)

    def _begin(self) -> None:
        self.lines = Lines()  # until the first connection says which database it is
        self.mutex = self.lines.mutex
        self.identity: Identity | None = None
        self._closed = False
        self.shared: list[LockConnection] = []
        self.opener = Opener(self._open_one, self._opened, self._not_opened)
        self.wishes = Wishes(self, partial(self.opener.begin, waits=True), self._max_waiting)
        self._courier: Courier | None = None

    # Connections

    def _open_one(self, waits: bool) -> Opened:
        return open_connection(self._connect, pooler=self._pooler, listens=not waits, statements=self._statements)

    def open_beside(self) -> Opened:
        """A connection like its own, for whoever asks. Blocks."""
        return self._open_one(True)

    def open(self, deadline: Deadline) -> Flow[None]:
        """Waits for a shared connection."""
        while not self.shared:
            opening = Opening(self.opener, deadline)
            yield opening
            if not opening.begun:
                raise ClientClosed
            if self.opener.error is not None and not self.shared:
                raise self.opener.error
            if deadline.passed:
                raise BackendUnavailable("PostgreSQL could not be reached in time")

    def _opened(self, opened: Opened, waits: bool) -> None:
        connection = LockConnection(self, opened, waits=waits)
        if self.identity is None:
            self.identity = opened.identity
            self.lines = lines_of(opened.identity)
            self.mutex = self.lines.mutex
        with self.mutex:
            if not self._closed:
                if self._courier is None:
                    self._courier = Courier(self)
                if waits:
                    self.wishes.new_connection(connection)
                else:
                    self.shared.append(connection)
        if self._closed:  # before, or just now under the mutex that was replaced here
            connection.close()
            self.close()

    def _not_opened(self, error: BaseException, waits: bool) -> None:
        """Whoever waits to be tried on a shared connection cannot be served."""
        if waits or self._courier is None or self.shared:
            return
        with self.mutex:
            while self.wishes.polled:
                line, _ = self.wishes.polled.popitem()
                line.wanted = False
                self._fail(line, error, of=self)
                self._want_or_drop(line)

    @property
    def courier(self) -> Courier:
        assert self._courier is not None
        return self._courier

    # A caller's way in and out

    def join(self, ticket: Ticket, key: Any) -> Try | None:
        """Puts the ticket into its line. What is asked of the server if it is the first there, else None."""
        mutex = self.mutex
        refuse_amid(mutex, ticket)
        with mutex:
            if self._closed:
                raise ClientClosed
            by_key = self.lines.by_key
            line = by_key.get(key)
            if line is not None:
                if ticket.wait != 0:
                    ticket.arm()
                    line.add(ticket, self)
                return None
            by_key[key] = line = Line(key)
            try:
                request = self._ask_for(line, ticket)
            except BaseException:  # Ctrl-C. In a line for which nobody asks one would wait for ever
                if not self.is_asked_for(line):
                    del by_key[key]
                raise
            return request

    def _ask_for(self, line: Line, ticket: Ticket) -> Try:
        """For a new line and its first ticket."""
        line.wanted, line.asks = True, self
        if ticket.new_wakeup is ThreadWakeup:
            connection = self.choose(None)
            if connection is not None and not connection.duty:
                line.taker = ticket  # its own thread makes the round trip: nobody has to wake it
        else:
            connection = self.choose(running_loop())
        if line.taker is None:
            ticket.arm()
            line.add(ticket, self)
        request = Try(self, line, ticket)
        self.queue(request, connection)
        return request

    def leave(self, ticket: Ticket, key: Any) -> bool:
        """Ends the ticket's wait. True if it has been granted the lock meanwhile."""
        if self.mutex._is_owned():
            self.courier.call(partial(self._leave_late, ticket, key))
            return ticket.state is not State.WAITING
        with self.mutex:
            if ticket.state is not State.WAITING:  # also if it was evicted already: a loss, not a busy lock
                return True
            line = self.lines.by_key.get(key)
            if line is not None and line.taker is ticket:
                line.taker = None  # what is asked for it comes to the next in line, or is given back
                self.courier.watch()  # should it have been struck by Ctrl-C before it could ask
                if not line.wanted:  # or amid the answer
                    self._want_or_drop(line)
            elif line is not None and line.waiting.pop(ticket, None) is not None and not line.waiting:
                if line.asks is not None:
                    line.asks.wishes.withdraw(line)
                self.lines.drop_if_unused(line)
            return False

    def release(self, ticket: Ticket, key: Any, wakeup: Callable[[], Wakeup] | None) -> Unlock | None:
        """Hands the lock on inside the process, or queues its unlock.

        The garbage collector may end an abandoned block in a thread that is inside the mutex. To wait for it there
        would be to wait for ever; the courier does it later.
        """
        if self.mutex._is_owned():
            self.courier.call(partial(self.give_back, ticket, key))
            return None
        with self.mutex:
            line = self.lines.by_key.get(key)
            if line is None or line.holder is not ticket or line.connection is None:
                return None
            if line.waiting and line.handovers < HANDOVERS:
                line.handovers += 1
                if line.hand_to_next(self):
                    return None
            request = Unlock(self, line)
            if wakeup is not None and (line.connection.duty or wakeup is not ThreadWakeup):
                request.wakeup = wakeup()
            try:
                line.holder, line.wanted = None, True
                self.queue(request, line.connection)
            except BaseException:  # Ctrl-C, who comes back with this ticket
                if request not in line.connection.pending:
                    line.holder, line.wanted = ticket, False
                raise
            return request

    def give_back(self, ticket: Ticket, key: Any) -> None:
        """Releases without anybody waiting for it."""
        request = self.release(ticket, key, None)
        if request is not None and request.connection is not None and self.claim(request):
            self.drive_soon(request.connection)

    def enqueue(self, request: Ask, loop: Any, *, anywhere: bool) -> None:
        with self.mutex:
            self.queue(request, self.choose(loop) if anywhere else request.connection)

    def unlock_soon(self, connection: LockConnection, line: Line) -> None:
        self.serve_soon(connection, Unlock(self, line))

    # Loss

    def broke(self, connection: LockConnection, error: BaseException) -> None:
        """The connection is gone, and with it all that was held on it."""
        with self.mutex:
            lost = self._take_apart(connection, error) if connection.broken is None else []
        if lost:
            _beside("holdfast-loss", partial(_tell_all, lost))
        connection.close()

    def _take_apart(self, connection: LockConnection, error: BaseException) -> list[Ticket]:
        """Who has lost a lock, marked so before anybody else can get it."""
        connection.broken = error
        reason = "its connection to PostgreSQL broke: " + str(error).partition("\n")[0]
        self.wishes.forget(connection)
        if connection in self.shared:
            self.shared.remove(connection)
        requests = [request for request in (*connection.in_flight, *connection.pending) if not request.done]
        for answered in [request.wakeup for request in connection.in_flight if request.done and request.wakeup]:
            answered.wake()  # Ctrl-C may have struck just before
        connection.pending.clear()
        freed: dict[PgKey, Line] = {line.key: line for line in connection.lines.values()}
        freed.update({request.line.key: request.line for request in requests if isinstance(request, Try | Unlock)})
        freed.update({line.key: line for line in self.lines.by_key.values() if line.waits_on is connection})
        holders = [line.holder for line in freed.values() if line.holder is not None]
        lost = [ticket for ticket in holders if ticket.mark_lost(reason)]
        connection.lines.clear()
        for line in freed.values():
            line.holder = line.connection = line.waits_on = None
            line.wanted = False
            self._want_or_drop(line)
        for request in requests:
            if isinstance(request, Try):
                request.done = True
            else:
                request.finish(None, error)
        return lost

    def busy_connections(self) -> list[LockConnection]:
        """Those that were asked something which the server answers at once; not those that stand in its queues."""
        with self.mutex:
            connections = (*self.shared, *self.wishes.connections)
            return [connection for connection in connections if connection.pending or connection.in_flight]

    def look_at_idle_connections(self) -> bool:
        """Notices lost connections. Returns whether there is anything to look after."""
        with self.mutex:
            connections = [*self.shared, *self.wishes.connections]
            busy = bool(self.wishes.polled) or any(c.lines or c.duty for c in connections)
            # What holds nothing can be lost without harm; it is found out when it is used.
            idle = [connection for connection in connections if connection.lines and not connection.duty]
            for connection in idle:
                connection.duty = True
            stuck = [connection for connection in self.shared if connection.pilot and connection.pilot.is_stuck()]
            left_alone = [connection for connection in connections if connection.is_left_alone()]
            for connection in left_alone:
                self.revoke(connection)
        for connection in idle:
            self.look_at(connection)
        for connection in stuck:
            if connection.pilot is not None and connection.pilot.retire():
                self.drive_soon(connection)
        for connection in left_alone:
            self.drive_soon(connection)
        return busy

    def look_at(self, connection: LockConnection) -> None:
        """Hears what the server said unasked, and gives the duty back."""
        try:
            connection.look()
        except Exception as error:
            self.broke(connection, error)
        else:
            self.end_duty(connection)

    def asked_to_evict(self, payload: str) -> None:
        """Another client asks for a key to be given up."""
        classid, _, objid = payload.partition(":")
        try:
            key = PgKey(int(classid) if classid else None, int(objid))
        except ValueError:
            return  # not from us: anybody who can connect may notify
        _beside("holdfast-evict", partial(self.evict_here, key))

    def evict_here(self, key: PgKey) -> LockConnection | None:
        """Takes the lock from its holder in this process, if there is one. The connection that will unlock it."""
        line = self.lines.by_key.get(key)
        ticket = line.holder if line is not None else None
        connection = line.connection if line is not None else None
        if ticket is None or connection is None or not ticket.lose("it was evicted"):
            return None
        connection.hub.give_back(ticket, key)
        return connection

    def _leave_late(self, ticket: Ticket, key: PgKey) -> None:
        if self.leave(ticket, key) and ticket.lose("its waiter was gone"):
            self.give_back(ticket, key)

    # The end

    def close(self) -> None:
        """Leaves nothing in the lines, which others share: whoever waits in them goes on by its own hub."""
        self.opener.close()
        with self.mutex:
            self._closed = True
            for line in list(self.lines.by_key.values()):
                self._fail(line, ClientClosed(), of=self)
        if self._courier is not None:
            self._courier.stop()
        with self.mutex:
            while self.wishes.polled:
                line, _ = self.wishes.polled.popitem()
                line.wanted = False
                self._want_or_drop(line)
            connections = [*self.shared, *self.wishes.connections]
        for connection in connections:
            self.broke(connection, psycopg.OperationalError("its client was closed"))

    def _start_afresh(self) -> None:
        for connection in (*self.shared, *self.wishes.connections):
            connection.abandon_in_child()
        self._begin()


def _tell_all(tickets: list[Ticket]) -> None:
    for ticket in tickets:
        ticket.tell_lost()


def _beside(name: str, work: Callable[[], object]) -> None:
    """In a thread of its own: a holder's callback may take its time, or locks, and the courier has others to see to."""
    Thread(target=work, name=name, daemon=True).start()
