"""The thread of a link: hears what is published to this process's mailboxes, on one connection for all of them, and
receives the answers that those who asked did not wait for.

It makes its connection anew when that is lost. Whoever waits is told then, since what was published meanwhile is gone.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable
from time import monotonic
from typing import Any, Final

import hiredis

from ...errors import LockError
from ..nudge import Nudge, readable
from .address import Opened
from .packing import command
from .wire import ThreadWire, take_in

Hear = Callable[[list[str]], None]
"""Told the words of each message."""

PING_SECONDS: Final = 10.0
PAUSES: Final = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


class Mailbox:
    """Where one client is reached."""

    def __init__(self, name: str, hear: Hear, missed: Callable[[], None]) -> None:
        self.name = name
        self.hear = hear
        self.missed = missed
        """Called when something may have been published that was not heard."""
        self.open = threading.Event()


class Listener:
    def __init__(self, connect: Callable[[], Opened], tidy: Callable[[], None]) -> None:
        self._connect = connect
        self._tidy = tidy
        """Called now and then."""
        self._mutex = threading.Lock()
        self._mailboxes: dict[str, Mailbox] = {}
        self._socket: Any = None
        self._reader = hiredis.Reader(encoding="utf-8", errors="replace")
        self._unattended: dict[int, ThreadWire] = {}
        self._failures = 0
        self._heard_at = self._asked_at = 0.0
        self._nudge = Nudge()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="holdfast-redis", daemon=True)

    @property
    def ident(self) -> int | None:
        return self._thread.ident

    def start(self) -> None:
        """Connects; whatever is wrong comes out here."""
        self._take_in(self._connect())
        self._thread.start()

    def stop(self) -> None:
        self._stopping = True
        self._nudge.give()
        if self._thread is not threading.current_thread():
            self._thread.join(5)

    def add(self, mailbox: Mailbox) -> None:
        """``mailbox.open`` is set when it can be reached."""
        with self._mutex:
            self._mailboxes[mailbox.name] = mailbox
            self._say(b"SUBSCRIBE", mailbox.name.encode())

    def remove(self, mailbox: Mailbox) -> None:
        with self._mutex:
            if self._mailboxes.pop(mailbox.name, None) is not None:
                self._say(b"UNSUBSCRIBE", mailbox.name.encode())

    def attend(self, wire: ThreadWire) -> None:
        """Has the wire's answers received."""
        self._unattended[wire.fd] = wire
        self._nudge.give()

    # The thread

    def _run(self) -> None:
        while not self._stopping:
            try:
                self._turn()
            except Exception as error:  # a mistake of ours, or of a callback: the others must be heard all the same
                _log().exception("action=listener_failed error=%r", error)
        self._hang_up()

    def _turn(self) -> None:
        poll = select.poll()
        poll.register(self._nudge.fd, select.POLLIN)
        pause = PING_SECONDS
        mail = self._socket
        if mail is not None:
            poll.register(mail.fileno(), select.POLLIN)
        elif self._mailboxes:
            pause = PAUSES[min(self._failures, len(PAUSES) - 1)]
        wires = list(self._unattended.values())
        for wire in wires:
            if wire.broken is None:
                poll.register(wire.fd, select.POLLIN | (select.POLLOUT if wire.unsent else 0))
                pause = min(pause, 1.0)
            else:
                self._unattended.pop(wire.fd, None)
        ready = {descriptor for descriptor, _ in poll.poll(pause * 1000)}
        if self._nudge.fd in ready:
            self._nudge.clear()
        for wire in wires:
            self._attend_now(wire, wire.fd in ready)
        if mail is not None and mail.fileno() in ready:
            self._receive()
        self._keep_connected()

    def _attend_now(self, wire: ThreadWire, ready: bool) -> None:
        if ready:
            self._unattended.pop(wire.fd, None)
            wire.attend()  # comes back here if there is more to come
        elif wire.stalled:
            wire.break_off(TimeoutError("no answer"))
        elif not wire.pending:
            self._unattended.pop(wire.fd, None)

    def _receive(self) -> None:
        try:
            data = take_in(self._socket)
        except OSError:
            data = b""
        if data is None:
            return
        if not data:
            self._hang_up()
            return
        self._heard_at = monotonic()
        self._reader.feed(data)
        while (message := self._reader.gets()) is not False:
            if isinstance(message, list):
                self._heed(message)

    def _heed(self, message: list[Any]) -> None:
        kind, name = message[0], message[1]
        mailbox = self._mailboxes.get(name)
        if mailbox is None:
            return
        if kind == "subscribe":
            mailbox.open.set()
        elif kind == "message":
            mailbox.hear(message[2].split(" "))

    # The connection

    def _keep_connected(self) -> None:
        self._tidy()
        now = monotonic()
        if self._socket is None:
            if self._mailboxes and not self._stopping:
                self._connect_again()
        elif now - self._heard_at > PING_SECONDS:
            if self._asked_at > self._heard_at and now - self._asked_at > PING_SECONDS / 2:
                self._hang_up()  # it was asked, and did not answer
            elif self._asked_at <= self._heard_at:
                self._asked_at = now
                with self._mutex:
                    self._say(b"PING")

    def _connect_again(self) -> None:
        try:
            opened = self._connect()
        except LockError:
            self._failures += 1
            return
        self._failures = 0
        self._take_in(opened)
        for mailbox in list(self._mailboxes.values()):
            if self._confirmed(mailbox):
                mailbox.missed()

    def _confirmed(self, mailbox: Mailbox) -> bool:
        """Waits, in this thread, until the mailbox can be reached again: before that, nobody is to ask."""
        deadline = monotonic() + PING_SECONDS / 2
        while not mailbox.open.is_set() and self._socket is not None and monotonic() < deadline:
            if readable(self._socket.fileno(), 0.1):
                self._receive()
        return mailbox.open.is_set()

    def _take_in(self, opened: Opened) -> None:
        with self._mutex:
            self._socket = opened.socket
            self._socket.settimeout(0)
            self._reader = hiredis.Reader(encoding="utf-8", errors="replace")
            self._heard_at = self._asked_at = monotonic()
            for name in self._mailboxes:
                self._say(b"SUBSCRIBE", name.encode())

    def _hang_up(self) -> None:
        with self._mutex:
            gone, self._socket = self._socket, None
            for mailbox in self._mailboxes.values():
                mailbox.open.clear()
        if gone is not None:
            gone.close()

    def _say(self, *words: bytes) -> None:
        if self._socket is None:
            return  # all mailboxes are opened when it is connected again
        try:
            self._socket.send(command(*words))
        except OSError:
            pass  # the thread finds out by itself

    def abandon_in_child(self) -> None:
        if self._socket is not None:
            os.close(self._socket.detach())


def _log() -> Any:
    import logging

    return logging.getLogger("holdfast")
