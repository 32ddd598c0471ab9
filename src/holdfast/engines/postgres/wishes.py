"""The lines whose lock is busy elsewhere: each stands in the server's queue, on a connection that holds nothing else.

The wait belongs to the line, not to its first waiter. Lines for which no such connection is left are tried together now
and then, so that no free key waits for another key's place. Guarded by the hub's mutex.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from .connection import LockConnection
from .lines import Line
from .requests import Ask, Try

if TYPE_CHECKING:
    from .hub import Hub


class Wishes:
    def __init__(self, hub: Hub, open_another: Callable[[], object], at_most: int) -> None:
        self._hub = hub
        self._open_another = open_another
        self._at_most = at_most
        self.connections: list[LockConnection] = []
        """Those to wait on. One that got its lock holds it, and is free again after the unlock."""
        self._idle: list[LockConnection] = []
        self.polled: OrderedDict[Line, None] = OrderedDict()

    def add(self, line: Line) -> None:
        line.wanted, line.asks = True, self._hub
        if self._idle:
            self._wait_on(self._idle.pop(), line)
            return
        self.polled[line] = None
        if len(self.connections) < self._at_most:
            self._open_another()
        self._hub.courier.watch()

    def withdraw(self, line: Line) -> None:
        """Nobody in this process waits for the lock any more."""
        if line in self.polled:
            del self.polled[line]
            line.wanted = False
        elif line.waits_on is not None and self._hub.shared:
            # Should it come too late and hit another statement of that connection, that is tried again.
            cancel = Ask(self._hub, "cancel", (b"%d" % line.waits_on.pid,))
            self._hub.serve_soon(self._hub.shared[0], cancel)

    def new_connection(self, connection: LockConnection) -> None:
        self.connections.append(connection)
        self.now_idle(connection)

    def now_idle(self, connection: LockConnection) -> None:
        if self.polled:
            line, _ = self.polled.popitem(last=False)
            self._wait_on(connection, line)
        else:
            self._idle.append(connection)

    def forget(self, connection: LockConnection) -> None:
        for connections in (self.connections, self._idle):
            if connection in connections:
                connections.remove(connection)

    def try_polled_on(self, connection: LockConnection) -> None:
        while self.polled:
            line, _ = self.polled.popitem(last=False)
            self._hub.serve_soon(connection, Try(self._hub, line))

    def _wait_on(self, connection: LockConnection, line: Line) -> None:
        connection.duty = True
        line.waits_on = connection
        self._hub.courier.call(partial(self._hub.courier.stand_in_queue, connection, line))
