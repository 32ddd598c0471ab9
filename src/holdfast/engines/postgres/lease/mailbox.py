"""Where the server tells this process what it did not ask for: one connection that listens, and its thread.

The connection holds the session lock of its number for as long as it lives. By that others know whether anybody listens
there. A connection that is made anew has a new number: the old one may still seem to live for a while.
"""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable
from secrets import randbelow
from typing import Any, Final

import psycopg
from psycopg import pq

from .... import fork
from ....errors import BackendUnavailable, LockError
from ....flow import Wakeup
from ...lease import Messages
from ...nudge import Nudge
from ..connect import Opened

_PAUSES: Final = (0.02, 0.1, 0.3, 1.0)
"""Seconds between attempts to connect anew."""

_REASONS: Final = {
    "evicted": "it was evicted",
    "attached": "it was attached elsewhere",
    "taken_anew": "its owner has taken it anew",
}


class Mailbox:
    def __init__(self, open_one: Callable[[], Opened]) -> None:
        self._open_one = open_one
        self.messages: Messages
        self._begin()
        fork.in_child(self._start_afresh)

    def _begin(self) -> None:
        self.number: int | None = None
        """None while nobody listens."""
        self.opened = False
        """Whether it has ever listened: then it does so again, by itself, whenever it is cut off."""
        self.error: LockError | None = None
        """Why it could not be opened the last time."""
        self._mutex = threading.Lock()
        self._sleepers: list[Wakeup] = []
        self._thread: threading.Thread | None = None
        self._connection: psycopg.Connection[Any] | None = None
        self._closed = False
        self._nudge = Nudge()
        """Given when it is closed."""

    def open(self, wakeup: Wakeup) -> None:
        """Begins to listen, for good. ``wakeup`` is told when that has succeeded, or failed for the first time."""
        with self._mutex:
            if self.number is None:
                self._sleepers.append(wakeup)
                if self._thread is None:
                    self._thread = threading.Thread(target=self._run, name="holdfast-mailbox", daemon=True)
                    self._thread.start()
                return
        wakeup.wake()

    def close(self) -> None:
        self._closed = True
        self._nudge.give()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(10)
        self._wake_sleepers()

    # Its thread

    def _run(self) -> None:
        failures = 0
        while not self._closed:
            try:
                with self._connect() as connection:
                    failures = 0
                    self._listen(connection)
            except (LockError, psycopg.Error, OSError) as error:
                with self._mutex:
                    self.error = error if isinstance(error, LockError) else BackendUnavailable(f"PostgreSQL: {error}")
                    if not self.opened:  # nobody relies on it yet: whoever needs it asks again
                        self._thread = None
                self._wake_sleepers()
                if not self.opened:
                    return
                self._nudge.wait(_PAUSES[min(failures, len(_PAUSES) - 1)])
                failures += 1

    def _connect(self) -> psycopg.Connection[Any]:
        connection = self._open_one().connection
        try:
            number = randbelow(2**31)
            while not _yes(connection, number):
                number = randbelow(2**31)
            connection.execute(f"listen holdfast_lease_{number}")
        except BaseException:
            connection.close()
            raise
        self._connection = connection
        again, self.error, self.number, self.opened = self.opened, None, number, True
        self._wake_sleepers()
        if again:
            self.messages.remade()
        return connection

    def _listen(self, connection: psycopg.Connection[Any]) -> None:
        pg = connection.pgconn
        poll = select.poll()
        poll.register(pg.socket, select.POLLIN)
        poll.register(self._nudge.fd, select.POLLIN)
        try:
            while self._nudge.fd not in (ready for ready, _ in poll.poll()):
                pg.consume_input()
                while (notification := pg.notifies()) is not None:
                    self._heed(notification.extra.decode())
                if pg.status != pq.ConnStatus.OK:
                    raise psycopg.OperationalError("the server closed the connection")
        finally:
            self.number = None

    def _heed(self, payload: str) -> None:
        match payload.split(" "):
            case ["offered", label]:
                self.messages.offered(label)
            case ["look_again", label, seconds]:
                try:
                    self.messages.look_again(label, float(seconds))
                except ValueError:
                    pass  # not from us: anybody who can connect may notify
            case [what, label, fence] if what in _REASONS and fence.isdecimal():
                self.messages.taken_away(label, int(fence), _REASONS[what])

    def _wake_sleepers(self) -> None:
        with self._mutex:
            sleepers, self._sleepers = self._sleepers, []
        for wakeup in sleepers:
            wakeup.wake()

    def _start_afresh(self) -> None:
        # Gives the descriptor up without a word to the server, whose session is the parent's.
        connection = self._connection
        if connection is not None and not connection.closed:
            try:
                os.close(connection.pgconn.socket)
            except OSError:
                pass
        self._begin()


def _yes(connection: psycopg.Connection[Any], number: int) -> bool:
    result = connection.pgconn.exec_prepared(b"open_mailbox", [b"%d" % number])
    if result.status != pq.ExecStatus.TUPLES_OK:
        raise BackendUnavailable(f"PostgreSQL refused a mailbox: {result.get_error_message().partition(chr(10))[0]}")
    return result.get_value(0, 0) == b"t"
