"""One lock connection: what it holds, what is asked of it, and one round trip after the other.

A round trip on a shared connection is never interrupted. It is a generator that yields whenever it waits for the
server, so that whoever began it (a thread that needs a lock) can leave at its deadline, and the courier brings it to
its end.
"""

from __future__ import annotations

import os
import select
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from math import inf
from socket import SHUT_RDWR, socket
from threading import get_ident
from types import GeneratorType
from typing import TYPE_CHECKING, Any, Final, TypeVar

import psycopg
from psycopg import pq

from ...deadline import Deadline
from ...keys import PgKey
from .connect import Opened
from .lines import Line
from .requests import Ask, Request, Try, Unlock

if TYPE_CHECKING:
    from .hub import Hub
    from .pilot import Pilot

Trip = Generator[None, None, Any]
Kind = TypeVar("Kind", Try, Unlock)

_ROWS: Final = pq.ExecStatus.TUPLES_OK
_TIMES: Final = 3
"""How often a statement is tried again that a stray cancel hit."""
_MANY: Final = 500
"""How many keys go into one statement: it must fit the socket's buffer, since only answers are waited for (16 kB)."""
_FEW: Final = 20
"""How many statements of their own go into one batch: what is urgent must not wait for a thousand others."""
_LOOK_UP: Final = 0.25
"""How often a thread that waits for the server sees whether it still has to.

Not much oftener: a timer so short that it is the next one of the machine is set in its hardware, which on a virtual
machine takes longer than the whole round trip (1 ms: 6 µs more, 250 ms: 1 µs more than none).
"""
_HOMELESS: Final = object()


class LockConnection:
    """Guarded by the hub's mutex, but for ``pg``, which belongs to whoever has the ``duty``."""

    def __init__(self, hub: Hub, opened: Opened, *, waits: bool) -> None:
        self.hub = hub
        self.waits = waits
        """Whether it stands in the server's queues and holds what it got there, or is shared by many locks."""
        self.pg = opened.connection.pgconn
        self.socket = self.pg.socket
        self.pid = opened.pid
        self.lines: dict[PgKey, Line] = {}
        """What is held here."""
        self.pending: deque[Request] = deque()
        self.in_flight: Sequence[Request] = ()
        self.duty = False
        """Whether somebody, or the courier, is at work on it."""
        self.served_by = 0
        """The caller's thread that is at work on it now, and then is the one to close it; 0 if it is the courier."""
        self.home: Any = _HOMELESS
        """The event loop whose tasks it serves; None if it serves threads."""
        self.pilot: Pilot | None = None
        """Who drives it in that loop."""
        self.trip: Trip | None = None
        self._sent: Request | None = None
        """The request of a thread that serves just itself, until it is answered."""
        self.left: Request | None = None
        """What was first in turn when the courier last looked, and nobody was seen to serve it."""
        self.broken: BaseException | None = None
        self._connection = opened.connection
        self._poll = select.poll()
        self._poll.register(self.socket, select.POLLIN)

    @property
    def is_homeless(self) -> bool:
        """Whether it may be claimed: nobody has, or the loop that did is closed and not in the middle of something."""
        if self.pilot is None:
            return self.home is _HOMELESS
        return not self.pilot.serves and bool(self.pilot.loop.is_closed())

    def is_left_alone(self) -> bool:
        """Whether nobody has served it since this was last asked, though somebody took the duty, or was offered it:
        Ctrl-C can do that."""
        nobody = self.duty and not self.served_by and self.trip is None and not (self.pilot and self.pilot.serves)
        first = self.pending[0] if nobody and self.pending else None
        before, self.left = self.left, first
        return first is not None and first is before

    # Who drives a round trip

    def serve_in_thread(self, request: Request) -> None:
        """One batch in this thread, which has the duty. Left at the deadline, or by Ctrl-C, the courier ends it."""
        here = get_ident()
        try:
            if not self.hub.claim(request, here):
                return
            if self.broken is not None or (self.trip is None and self._serve_alone(request)):
                return
            self.trip = self.trip or self.serve()
            for _ in self.trip:
                if not self.readable(request.deadline):
                    self.hub.drive_soon(self)
                    return
            self.trip = None
            self.hub.end_duty(self)
        except psycopg.Error as error:
            self.hub.broke(self, error)
        except BaseException:
            if self._sent is request and self.trip is None:  # in the wait for an answer, most likely
                self.trip = self._rest_of(request)
            if isinstance(self.trip, GeneratorType) and self.trip.gi_frame is not None:
                self.hub.drive_soon(self)
            else:
                # It struck inside the trip: nobody knows what the server did. Such a connection is not used again.
                self.hub.broke(self, psycopg.OperationalError("interrupted in the middle of a round trip"))
            raise
        finally:
            if self.broken is not None and self.served_by == here:
                self.served_by = 0
                self.close()

    def _serve_alone(self, request: Request) -> bool:
        """The common case straight on: one lock to take or give back, nobody else asks, and the answer comes at once.

        False if it is not that case, or has turned out not to be: then ``trip`` is what is left to do.
        """
        line, pending = request.line, self.pending
        if line is None or len(pending) != 1 or pending[0] is not request:
            return False
        del pending[0]  # no call, after which Ctrl-C could strike: it is always in one of the two
        self.in_flight = (request,)
        pg, attempts = self.pg, type(request) is Try
        self._sent = request  # before it is: should Ctrl-C strike in between, there is no answer, and that is found out
        pg.send_query_prepared(line.form.attempt if attempts else line.form.unlock, line.parameters)
        # An unlock's deadline is far away, and made only if the answer does not come at once.
        if not self._readable_for(request.deadline.remaining if attempts else inf) and not self.readable(
            request.deadline
        ):
            self.trip = self._rest_of(request)
            self.hub.drive_soon(self)
            return True
        pg.consume_input()
        result = None if pg.is_busy() else pg.get_result()
        if result is None or result.status != _ROWS or pg.is_busy() or pg.get_result() is not None:
            self.trip = self._rest_of(request, result)
            return False
        self._sent = None
        answer = result.get_value(0, 0)
        hub = self.hub
        with hub.mutex:
            if attempts:
                hub.tried(self, request, answer)  # type: ignore[arg-type]
            else:
                hub.unlocked(self, request, answer == b"t")  # type: ignore[arg-type]
            self.in_flight = ()
            if pending or self.waits:
                hub.next_duty(self)
            else:
                self.served_by = 0
                self.duty = False
        return True

    def readable(self, deadline: Deadline) -> bool:
        """Waits for the server. Can be interrupted by a signal's handler."""
        while not self._readable_for(deadline.remaining):
            if deadline.passed:  # as it is when the client was closed meanwhile
                return False
        return True

    def _readable_for(self, seconds: float) -> bool:
        return bool(self._poll.poll(min(seconds, _LOOK_UP) * 1000))

    def look(self) -> None:
        """Takes in what the server said unasked: nothing, a notification, or good-bye. Raises on the latter."""
        if self._poll.poll(0):
            self.pg.consume_input()
            if self.pg.status != pq.ConnStatus.OK:
                raise psycopg.OperationalError("the server closed the connection")
        self.heed_notifications()

    # Round trips

    def serve(self) -> Trip:
        """One batch: all that was asked up to now. Unlocks first, so that a try finds them done; tries after."""
        with self.hub.mutex:
            asks = [request for request in self.pending if isinstance(request, Ask)]
            later = dict.fromkeys(asks[_FEW:])
            self.in_flight = batch = [request for request in self.pending if request not in later]
            self.pending = deque(later)
        unlocks = [request for request in batch if isinstance(request, Unlock)]
        tries = [request for request in batch if isinstance(request, Try)]
        for portion in _portions(unlocks):
            yield from self._unlock(portion)
        for attempts in _portions(tries):
            yield from self._try(attempts)
        for request in batch:
            if isinstance(request, Ask):
                result = yield from self.ask(request.statement.encode(), request.parameters)
                error = None if _succeeded(result) else psycopg.DatabaseError(_message_of(result))
                request.finish(result, error)
        self.in_flight = ()

    def wait_for(self, line: Line, milliseconds: int) -> Trip:
        """Stands in the server's queue. On a connection that holds nothing, so that any doubt can be cleared."""
        result = yield from self.ask(line.form.wait, (*line.parameters, b"%d" % milliseconds))
        if _succeeded(result):
            with self.hub.mutex:
                self.hub.wait_granted(self, line, result.get_value(0, result.nfields - 1))
            return
        # A statement that fails may have been granted the lock all the same (PostgreSQL's bug 17686).
        yield from self._insist(b"unlock_all", ())
        with self.hub.mutex:
            self.hub.wait_failed(self, line, _sqlstate(result), _message_of(result))

    def ask(self, statement: bytes, parameters: Sequence[bytes | None]) -> Trip:
        """One statement, one result. Yields while it waits; raises ``OperationalError`` when the connection is gone."""
        self.pg.send_query_prepared(statement, parameters)
        return (yield from self._answer())

    def _answer(self, result: pq.abc.PGresult | None = None) -> Trip:
        pg = self.pg
        while True:
            while pg.is_busy():  # asked before each result: part of an answer may come late, or never
                yield
                pg.consume_input()
            following = pg.get_result()
            if following is None:
                break
            result = result or following
        if pg.status != pq.ConnStatus.OK or result is None:
            raise psycopg.OperationalError(_message_of(result) or "the server closed the connection")
        self.heed_notifications()
        return result

    def heed_notifications(self) -> None:
        while (notification := self.pg.notifies()) is not None:
            self.hub.asked_to_evict(notification.extra.decode())

    def _rest_of(self, request: Request, result: pq.abc.PGresult | None = None) -> Trip:
        """The end of a round trip that was begun alone."""
        self._sent = None
        result = yield from self._answer(result)
        assert result is not None
        if isinstance(request, Try):
            yield from self._tried([request], result)
        elif isinstance(request, Unlock):
            yield from self._unlocked([request], result)
        self.in_flight = ()

    def _try(self, requests: list[Try]) -> Trip:
        result = yield from self.ask(*_statement("try", requests))
        yield from self._tried(requests, result)

    def _tried(self, requests: list[Try], result: pq.abc.PGresult) -> Trip:
        if _succeeded(result):
            with self.hub.mutex:
                for row, request in enumerate(requests):
                    self.hub.tried(self, request, result.get_value(row, 0))
            return
        # Part of it may have been granted: undo exactly these keys, none of which was held here before.
        yield from self._insist(*_statement("unlock", requests))
        if len(requests) > 1:
            for request in requests:
                yield from self._try([request])
            return
        with self.hub.mutex:
            self.hub.try_failed(requests[0], _sqlstate(result), _message_of(result))

    def _unlock(self, requests: list[Unlock]) -> Trip:
        result = yield from self.ask(*_statement("unlock", requests))
        yield from self._unlocked(requests, result)

    def _unlocked(self, requests: list[Unlock], result: pq.abc.PGresult) -> Trip:
        if not _succeeded(result):
            result = yield from self._insist(*_statement("unlock", requests))
        with self.hub.mutex:
            for row, request in enumerate(requests):
                self.hub.unlocked(self, request, result.get_value(row, 0) == b"t")

    def _insist(self, statement: bytes, parameters: Sequence[bytes]) -> Trip:
        """A statement that must succeed: a stray cancel is tried again; after that the connection is not trusted."""
        for _ in range(_TIMES):
            result = yield from self.ask(statement, parameters)
            if _succeeded(result):
                return result
        raise psycopg.OperationalError(f"{statement.decode()} failed: {_message_of(result)}")

    # The end

    def close(self) -> None:
        """Or, if a thread is at work on it, has that thread notice, and close it."""
        with self.hub.mutex:
            pilot = self.pilot
            left_to_loop = pilot is not None and pilot.leave_to_loop(self._connection.close)
            if not left_to_loop and (not self.served_by or pilot is not None):
                self._connection.close()
                return
            try:
                with socket(fileno=os.dup(self.socket)) as line:
                    line.shutdown(SHUT_RDWR)
            except OSError:
                pass  # it is gone, and the thread knows

    def abandon_in_child(self) -> None:
        """After a fork: gives the descriptor up without a word to the server, whose session is the parent's."""
        try:
            os.close(self.socket)
        except OSError:
            pass


def _portions(requests: list[Kind]) -> Iterator[list[Kind]]:
    for start in range(0, len(requests), _MANY):
        yield requests[start : start + _MANY]


def _statement(verb: str, requests: Sequence[Try | Unlock]) -> tuple[bytes, Sequence[bytes]]:
    if len(requests) == 1:
        line = requests[0].line
        return line.form.attempt if verb == "try" else line.form.unlock, line.parameters
    keys = [request.line.key for request in requests]
    classids = b",".join(b"NULL" if key.classid is None else b"%d" % key.classid for key in keys)
    objids = b",".join(b"%d" % key.objid for key in keys)
    return f"{verb}_many".encode(), (b"{%s}" % classids, b"{%s}" % objids)


def _succeeded(result: pq.abc.PGresult) -> bool:
    return result.status in (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK)


def _sqlstate(result: pq.abc.PGresult) -> str:
    return (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()


def _message_of(result: pq.abc.PGresult | None) -> str:
    return "" if result is None else result.get_error_message().partition("\n")[0]
