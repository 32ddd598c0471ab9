"""What becomes of the server's answers. All of it runs under the hub's mutex."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ...errors import BackendUnavailable
from ...ticket import Ticket
from .connection import LockConnection
from .courier import Courier
from .lines import Line, Lines
from .requests import Try, Unlock
from .wishes import Wishes

if TYPE_CHECKING:
    from .hub import Hub

_WAIT_AGAIN: Final = ("55P03", "57014", "40P01")
"""Lock timeout, cancelled, chosen by the dead-lock detector: nothing is wrong with the wait itself."""


class Busy(Exception):
    """Put on a ticket that tried once and found the lock taken."""


class Answers:
    """The part of a hub that hears from its connections."""

    lines: Lines
    wishes: Wishes

    @property
    def courier(self) -> Courier:
        raise NotImplementedError

    def unlock_soon(self, connection: LockConnection, line: Line) -> None:
        raise NotImplementedError

    def tried(self, connection: LockConnection, request: Try, answer: bytes | None) -> None:
        """``answer`` is the server's: t, f, or with fences a number or null."""
        if request.done:  # the connection was taken apart meanwhile
            return
        line = request.line
        request.done = True
        line.wanted = False
        taker, granted = line.taker, answer is not None and answer != b"f"
        if granted and taker is not None:
            line.taker = None
            connection.lines[line.key] = line
            line.connection, line.holder = connection, taker
            line.fence = fence = _fence_of(answer)
            taker.granted(fence=fence)
            connection.hub.courier.watch()
            return
        line.queue_taker()
        if granted:
            self._got(connection, line, answer)
            return
        for ticket in [ticket for ticket in line.waiting if not ticket.waits]:
            del line.waiting[ticket]
            _tell(ticket, Busy())
        self._want_or_drop(line)

    def try_failed(self, request: Try, code: str, message: str) -> None:
        if not request.done:
            request.done = True
            self._failed(request.line, code, message)

    def wait_granted(self, connection: LockConnection, line: Line, answer: bytes | None) -> None:
        if line.waits_on is connection:
            line.waits_on, line.wanted = None, False
            self._got(connection, line, answer)

    def wait_failed(self, connection: LockConnection, line: Line, code: str, message: str) -> None:
        if line.waits_on is connection:
            line.waits_on = None
            self._failed(line, code, message)

    def unlocked(self, connection: LockConnection, request: Unlock, was_held: bool) -> None:
        if request.done:
            return
        line = request.line
        connection.lines.pop(line.key, None)
        line.connection, line.wanted = None, False
        if not line.waiting and self.lines.by_key.get(line.key) is line:
            del self.lines.by_key[line.key]
        request.finish(was_held)  # not before: who is struck by Ctrl-C in here leaves no line behind
        if line.waiting:
            self._want_or_drop(line)

    def _got(self, connection: LockConnection, line: Line, answer: bytes | None) -> None:
        connection.lines[line.key] = line
        line.connection = connection
        line.handovers = 0
        line.fence = _fence_of(answer)
        self.courier.watch()
        if not line.hand_to_next(connection.hub):
            line.wanted = True
            self.unlock_soon(connection, line)

    def _failed(self, line: Line, code: str, message: str) -> None:
        line.wanted = False
        if code in _WAIT_AGAIN:
            self._want_or_drop(line)
        elif code == "53200":
            hint = "raise max_locks_per_transaction, or hold fewer locks at once"
            self._fail(line, BackendUnavailable(f"PostgreSQL's lock table is full; {hint} ({message})"))
        else:
            self._fail(line, BackendUnavailable(f"PostgreSQL refused the lock: {message} (SQLSTATE {code})"))

    def _fail(self, line: Line, error: BaseException, of: Hub | None = None) -> None:
        """Ends the waits for the line: all, or those of one hub."""
        line.queue_taker()
        for ticket in [ticket for ticket, hub in line.waiting.items() if of in (None, hub)]:
            del line.waiting[ticket]
            _tell(ticket, error)
        self.lines.drop_if_unused(line)

    def _want_or_drop(self, line: Line) -> None:
        line.queue_taker()
        if line.waiting:
            next(iter(line.waiting.values())).wishes.add(line)
        else:
            self.lines.drop_if_unused(line)


def _fence_of(answer: bytes | None) -> int | None:
    return int(answer) if answer and answer.isdigit() else None


def _tell(ticket: Ticket, error: BaseException) -> None:
    ticket.engine_state = error
    if ticket.wakeup is not None:
        ticket.wakeup.wake()
