"""A connection on which requests are sent as they come and answered in that order.

``ThreadWire`` is shared by threads: each sends its own request and receives its own answer, unless somebody else is
receiving; whoever receives delivers what comes for the others. ``LoopWire`` belongs to one event loop, which receives.

An interruption amid receiving leaves no way to tell where the next answer begins. Then the connection is closed, and
whoever waits on it asks again: every request may be made twice.
"""

from __future__ import annotations

import os
import select
import ssl
from collections import deque
from collections.abc import Callable
from math import inf
from socket import SHUT_RDWR
from socket import socket as Socket
from threading import RLock, get_ident
from time import monotonic
from typing import TYPE_CHECKING, Any, Final

import hiredis

from ...flow import ThreadWakeup
from .requests import Disconnected, Request

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

PORTION: Final = 65536
STALL_SECONDS: Final = 5.0
"""A connection on which nothing has come for so long after somebody gave up waiting is given up."""
_NOT_NOW: Final = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


def take_in(socket: Socket) -> bytes | None:
    """What has come; nothing at all if the other side has hung up, None if it is only not there yet."""
    try:
        data = socket.recv(PORTION)
        if isinstance(socket, ssl.SSLSocket):
            while socket.pending():  # decrypted already: the descriptor would not tell of it
                data += socket.recv(PORTION)
        return data
    except _NOT_NOW:
        return None


class Wire:
    """What both kinds have in common."""

    def __init__(self, socket: Socket) -> None:
        socket.setblocking(False)
        self.socket = socket
        self.fd = socket.fileno()
        self.pending: deque[Request] = deque()
        self.broken: BaseException | None = None
        self.unsent = b""
        self.stalled_at = inf
        self._reader = hiredis.Reader()

    def transmit(self, payload: bytes) -> None:
        """Sends, as far as the kernel takes it at once."""
        payload = self.unsent + payload if self.unsent else payload
        try:
            sent = self.socket.send(payload)
        except _NOT_NOW:
            sent = 0
        self.unsent = payload[sent:] if sent < len(payload) else b""

    def receive(self) -> None:
        """Takes what has come, and delivers it."""
        try:
            data = take_in(self.socket)
            if data is None:
                return
            if not data:
                raise ConnectionResetError("the server closed the connection")
            self.stalled_at = inf
            reader, pending = self._reader, self.pending
            reader.feed(data)
            while (reply := reader.gets()) is not False:
                if pending[0].deliver(reply):
                    pending.popleft()
        except BaseException as error:
            self.break_off(error)
            if not isinstance(error, Exception):
                raise

    def left_alone(self) -> None:
        """Somebody went without an answer."""
        if self.stalled_at == inf:
            self.stalled_at = monotonic()

    @property
    def stalled(self) -> bool:
        return self.stalled_at + STALL_SECONDS < monotonic()

    def enqueue(self, request: Request) -> None:
        try:
            request.sent = True
            self.pending.append(request)
            self.transmit(request.payload)
        except BaseException as error:  # sent in part, or not at all: the answers would go to the wrong ones
            self.break_off(error)
            if not isinstance(error, OSError):
                raise

    def break_off(self, error: BaseException) -> None:
        """Closes it; what was asked and not answered may or may not have been done."""
        self.close(error)
        while self.pending:
            try:
                request = self.pending.popleft()
            except IndexError:
                return
            request.fail(Disconnected(f"the connection to Redis was lost: {_told(error)}"))

    def close(self, error: BaseException | None = None) -> None:
        if self.broken is None:
            self.broken = error or Disconnected("it was closed")
        self.socket.close()

    def abandon_in_child(self) -> None:
        """After a fork: gives the descriptor up without a word to the server."""
        self.broken = Disconnected("it was opened by the process that forked this one")
        try:
            os.close(self.socket.detach())
        except OSError:
            pass


class ThreadWire(Wire):
    def __init__(self, socket: Socket, unattended: Callable[[], None]) -> None:
        super().__init__(socket)
        self._mutex: Any = RLock()  # re-entrant only to know its owner
        self._poll = select.poll()
        self._poll.register(self.fd, select.POLLIN)
        self._receiver: Request | None = None
        self._receiving_in = 0
        self._unattended = unattended
        """Called when there are answers to come and nobody to receive them: ``attend`` is to be called then."""

    @property
    def amid(self) -> bool:
        """Whether this very thread is at work on it: a finaliser or signal handler runs in the middle of that."""
        return self._receiving_in == get_ident() or self._mutex._is_owned()

    def exchange(self, request: Request) -> None:
        """Sends the request and waits for its answer, to its deadline at most."""
        try:
            with self._mutex:
                if self.broken is not None:
                    request.fail(Disconnected("the connection to Redis was lost"))
                    return
                self.enqueue(request)
                if self._receiver is None:
                    self._receiver = request
                else:
                    request.wakeup = ThreadWakeup()
            if self.unsent:
                self._send_all(request)
            while not request.done:
                if self._receiver is request:
                    self._receive_for(request)
                elif request.wakeup is not None:
                    request.wakeup.sleep(request.deadline).block()
                if request.deadline.passed:
                    break
        finally:
            try:
                self._leave(request)
            except KeyboardInterrupt:  # struck in there, at any line of it
                with self._mutex:
                    request.wakeup = None
                    if self._receiver is None or self._receiver is request:
                        self._next_receiver()
                    elif self._receiver.wakeup is not None:
                        self._receiver.wakeup.wake()
                raise

    def _receive_for(self, request: Request) -> None:
        self._receiving_in = get_ident()
        while not request.done:
            remaining = request.deadline.remaining
            if self.unsent:
                self._send_rest()
            if self._poll.poll(None if remaining == inf else remaining * 1000):
                self.receive()
            elif request.deadline.passed:
                return

    def _send_all(self, request: Request) -> None:
        """Sends what the kernel did not take at once. Whoever receives waits for answers, and would not see to it."""
        writable = select.poll()
        writable.register(self.fd, select.POLLOUT)
        while self.unsent and self.broken is None and not request.deadline.passed:
            remaining = request.deadline.remaining
            if writable.poll(None if remaining == inf else remaining * 1000):
                self._send_rest()

    def _send_rest(self) -> None:
        """The kernel's buffer was full: the request is long, or the server is busy with something else, or stopped."""
        with self._mutex:
            if self.unsent and self.broken is None:
                try:
                    self.transmit(b"")
                except OSError as error:
                    self.break_off(error)

    def _leave(self, request: Request) -> None:
        if self._receiver is not request:
            if request.wakeup is not None:
                with self._mutex:
                    request.wakeup = None
                    if self._receiver is request:  # made so in this very moment
                        self._next_receiver()
                if not request.done and self.broken is None:
                    # The one that receives may have all the time in the world: somebody else is to notice a dead wire.
                    self.left_alone()
                    self._unattended()
            elif self._receiver is None and request.under_way:  # Ctrl-C struck when it had just been sent
                with self._mutex:
                    self._next_receiver()
            return
        with self._mutex:
            request.wakeup = None  # its answer is still to come, but nobody is there who could be told to receive
            self._next_receiver()
        if not request.done:
            self.left_alone()

    def _next_receiver(self) -> None:
        self._receiver, self._receiving_in = None, 0
        for request in list(self.pending):
            if request.wakeup is not None:
                self._receiver = request
                request.wakeup.wake()
                return
        if self.pending:
            self._unattended()

    def attend(self) -> None:
        """Sends and receives for those who left, unless somebody else receives by now."""
        if self.unsent:
            self._send_rest()
        with self._mutex:
            if self.unsent and self.broken is None:
                self._unattended()
            if self._receiver is not None or not self.pending or self.broken is not None:
                return
            self._receiver = _NOBODY
            self._receiving_in = get_ident()
        try:
            self.receive()
        finally:
            with self._mutex:
                self._next_receiver()

    def break_off(self, error: BaseException) -> None:
        with self._mutex:
            try:
                self.socket.shutdown(SHUT_RDWR)  # closing it would not wake a thread that waits for it to be readable
            except OSError:
                pass  # it has ended
            super().break_off(error)


class LoopWire(Wire):
    def __init__(self, socket: Socket, loop: AbstractEventLoop) -> None:
        super().__init__(socket)
        self.loop = loop
        self._alarm_at = inf
        """When deadlines are looked at next: one timer for all, since one for each would cost more than the rest."""
        loop.add_reader(self.fd, self.receive)

    def send(self, request: Request) -> None:
        if self.broken is not None:
            request.fail(Disconnected("the connection to Redis was lost"))
            return
        self.enqueue(request)
        if self.unsent and self.broken is None:
            self.loop.add_writer(self.fd, self._writable)
        if request.deadline.at < self._alarm_at:
            self._look_by(request.deadline.at)

    def _look_by(self, at: float) -> None:
        self._alarm_at = at
        self.loop.call_later(max(0.0, at - monotonic()), self._look_at_deadlines)

    def _look_at_deadlines(self) -> None:
        self._alarm_at = inf
        now, waiting = monotonic(), []
        for request in list(self.pending):
            if request.deadline.at <= now:
                request.ring()
            else:
                waiting.append(request.deadline.at)
        if waiting and self.broken is None and min(waiting) != inf:
            self._look_by(min(waiting))

    def _writable(self) -> None:
        try:
            self.transmit(b"")
        except OSError as error:
            self.break_off(error)
            return
        if not self.unsent:
            self.loop.remove_writer(self.fd)

    def __del__(self) -> None:
        self.socket.close()  # a process may end without closing its clients: no warning then

    @property
    def orphaned(self) -> bool:
        """Whether nobody will receive here any more."""
        return self.loop.is_closed()

    def left_alone(self) -> None:
        super().left_alone()
        if not self.orphaned:
            self.loop.call_later(STALL_SECONDS + 0.1, self._give_up_if_stalled)

    def _give_up_if_stalled(self) -> None:
        if self.broken is None and self.stalled:
            self.break_off(TimeoutError("no answer"))

    def close(self, error: BaseException | None = None) -> None:
        if self.broken is None and not self.orphaned:
            self.loop.remove_reader(self.fd)
            self.loop.remove_writer(self.fd)
        super().close(error)


def _told(error: BaseException) -> str:
    return str(error) or type(error).__name__


_NOBODY: Final = Request(None, b"", None)  # type: ignore[arg-type]
