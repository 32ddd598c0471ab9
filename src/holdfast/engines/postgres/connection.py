"""One lock connection: what it holds, what is asked of it, and one round trip after the other.

A round trip on a shared connection is never interrupted. It is a generator that yields whenever it waits for the
server, so that whoever began it (a thread that needs a lock) can leave at its deadline, and the courier brings it to
its end.
"""

from __future__ import annotations

import os
import select
from collections import deque
from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any, Final

import psycopg
from psycopg import pq

from ...keys import PgKey
from .lines import Line
from .requests import Kind, Request

if TYPE_CHECKING:
    from .hub import Hub

Trip = Generator[None, None, Any]

_OK: Final = (pq.ExecStatus.TUPLES_OK, pq.ExecStatus.COMMAND_OK)
_TIMES: Final = 3
"""How often a statement is tried again that a stray cancel hit."""


class LockConnection:
    """Guarded by the hub's mutex, but for ``pg``, which belongs to whoever has the ``duty``."""

    def __init__(self, hub: Hub, connection: psycopg.Connection[Any], *, waits: bool) -> None:
        self.hub = hub
        self.waits = waits
        """Whether it stands in the server's queues and holds what it got there, or is shared by many locks."""
        self.pg = connection.pgconn
        self.socket = self.pg.socket
        self.pid = self.pg.backend_pid
        self.lines: dict[PgKey, Line] = {}
        """What is held here."""
        self.pending: deque[Request] = deque()
        self.in_flight: list[Request] = []
        self.duty = False
        """Whether somebody, or the courier, is at work on it."""
        self.trip: Trip | None = None
        self.broken: BaseException | None = None
        self._connection = connection
        self._poll = select.poll()
        self._poll.register(self.socket, select.POLLIN)

    def readable(self, seconds: float) -> bool:
        """Waits for the server. Can be interrupted by a signal's handler."""
        return bool(self._poll.poll(min(seconds, 3600.0) * 1000))

    def look(self) -> None:
        """Takes in what the server said unasked: nothing, a notification, or good-bye. Raises on the latter."""
        if self.readable(0):
            self.pg.consume_input()
            self.heed_notifications()
            if self.pg.status != pq.ConnStatus.OK:
                raise psycopg.OperationalError("the server closed the connection")

    # Round trips

    def serve(self) -> Trip:
        """One batch: all that was asked up to now. Unlocks first, so that a try finds them done; tries after."""
        with self.hub.mutex:
            self.in_flight = batch = list(self.pending)
            self.pending.clear()
        if len(batch) > 1:
            tries = [request for request in batch if request.kind is Kind.TRY]
            unlocks = [request for request in batch if request.kind is Kind.UNLOCK]
        else:
            tries = batch if batch and batch[0].kind is Kind.TRY else []
            unlocks = batch if batch and batch[0].kind is Kind.UNLOCK else []
        if unlocks:
            yield from self._unlock(unlocks)
        if tries:
            yield from self._try(tries)
        for request in batch:
            if request.kind is Kind.ASK:
                result = yield from self.ask(request.statement, request.parameters)
                error = None if result.status in _OK else psycopg.DatabaseError(result.get_error_message())
                request.finish(result, error)
        self.in_flight = []

    def wait_for(self, line: Line, milliseconds: int) -> Trip:
        """Stands in the server's queue. On a connection that holds nothing, so that any doubt can be cleared."""
        key = line.key
        limit = b"%d" % milliseconds
        if key.classid is None:
            result = yield from self.ask("wait_hash", (b"%d" % key.objid, limit))
        else:
            result = yield from self.ask("wait_pair", (b"%d" % key.classid, b"%d" % key.objid, limit))
        if result.status in _OK:
            with self.hub.mutex:
                self.hub.wait_granted(self, line)
            return
        code = _sqlstate(result)
        # A statement that fails may have been granted the lock all the same (PostgreSQL's bug 17686).
        yield from self._insist("unlock_all", ())
        with self.hub.mutex:
            self.hub.wait_failed(self, line, code, result.get_error_message())

    def ask(self, statement: str, parameters: Sequence[bytes | None]) -> Trip:
        """One statement, one result. Yields while it waits; raises ``OperationalError`` when the connection is gone."""
        pg = self.pg
        pg.send_query_prepared(statement.encode(), parameters)
        yield
        pg.consume_input()
        while pg.is_busy():
            yield
            pg.consume_input()
        result = pg.get_result()
        while pg.get_result() is not None:
            pass
        if pg.status != pq.ConnStatus.OK or result is None:
            raise psycopg.OperationalError(_message_of(result) or "the server closed the connection")
        self.heed_notifications()
        return result

    def heed_notifications(self) -> None:
        while (notification := self.pg.notifies()) is not None:
            self.hub.asked_to_evict(notification.extra.decode())

    def _try(self, requests: list[Request]) -> Trip:
        keys = [_key(request) for request in requests]
        result = yield from self.ask(*_statement("try", keys))
        if result.status not in _OK and len(requests) > 1:
            # Part of the batch may have been granted: undo exactly its keys, none of which was held here before.
            yield from self._insist(*_statement("unlock", keys))
            for request in requests:
                yield from self._try([request])
            return
        if result.status not in _OK:
            yield from self._insist(*_statement("unlock", keys))
            with self.hub.mutex:
                self.hub.try_failed(requests[0], _sqlstate(result), result.get_error_message())
            return
        with self.hub.mutex:
            for row, request in enumerate(requests):
                self.hub.tried(self, request, result.get_value(row, 0) == b"t")

    def _unlock(self, requests: list[Request]) -> Trip:
        result = yield from self._insist(*_statement("unlock", [_key(request) for request in requests]))
        with self.hub.mutex:
            for row, request in enumerate(requests):
                self.hub.unlocked(self, request, result.get_value(row, 0) == b"t")

    def _insist(self, statement: str, parameters: Sequence[bytes | None]) -> Trip:
        """A statement that must succeed: a stray cancel is tried again; after that the connection is not trusted."""
        for _ in range(_TIMES):
            result = yield from self.ask(statement, parameters)
            if result.status in _OK:
                return result
        raise psycopg.OperationalError(f"{statement} failed: {_message_of(result)}")

    # The end

    def close(self) -> None:
        self._connection.close()

    def abandon_in_child(self) -> None:
        """After a fork: gives the descriptor up without a word to the server, whose session is the parent's."""
        try:
            os.close(self.socket)
        except OSError:
            pass


def _key(request: Request) -> PgKey:
    assert request.line is not None
    return request.line.key


def _statement(verb: str, keys: list[PgKey]) -> tuple[str, tuple[bytes | None, ...]]:
    if len(keys) == 1:
        (key,) = keys
        if key.classid is None:
            return f"{verb}_hash", (b"%d" % key.objid,)
        return f"{verb}_pair", (b"%d" % key.classid, b"%d" % key.objid)
    classids = b",".join(b"NULL" if key.classid is None else b"%d" % key.classid for key in keys)
    objids = b",".join(b"%d" % key.objid for key in keys)
    return f"{verb}_many", (b"{%s}" % classids, b"{%s}" % objids)


def _sqlstate(result: pq.abc.PGresult) -> str:
    return (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()


def _message_of(result: pq.abc.PGresult | None) -> str:
    return "" if result is None else result.get_error_message().partition("\n")[0]
