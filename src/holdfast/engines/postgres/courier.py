"""The thread of a hub that does what no caller can: it stands in the server's queues, brings abandoned round trips to
their end, serves the tasks of event loops, and notices when a connection is gone.

It never blocks in a single connection. It sleeps while nothing is held and nothing is asked.
"""

from __future__ import annotations

import selectors
import threading
import time
from collections import deque
from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, Final

from ..nudge import Nudge
from .connection import LockConnection, Trip
from .lines import Line

if TYPE_CHECKING:
    from .hub import Hub

POLL_SECONDS: Final = 0.02
"""How often keys are tried for which no connection is left to wait."""
WATCH_SECONDS: Final = 0.1
"""How often idle connections that hold locks are looked at: a loss is seen that soon."""
WAIT_SECONDS: Final = 60.0
"""How long a statement waits at most: it holds a snapshot, which holds back vacuum and CREATE INDEX CONCURRENTLY."""
_QUIET_WATCHES: Final = 10


class Courier:
    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._jobs: deque[Callable[[], object]] = deque()
        self._selector = selectors.DefaultSelector()
        self._nudge = Nudge()
        self._selector.register(self._nudge.fd, selectors.EVENT_READ)
        self._registered: set[LockConnection] = set()
        self._sleeps = True
        self._quiet = 0
        self._next_watch = inf
        self._next_poll = 0.0
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="holdfast-postgres", daemon=True)
        self._thread.start()

    def call(self, job: Callable[[], object]) -> None:
        """Has ``job`` done in the courier's thread. Never waits."""
        self._jobs.append(job)
        self._rouse()

    def watch(self) -> None:
        """Something is held or waited for from now on. Called under the hub's mutex."""
        self._quiet = 0
        if self._next_watch == inf:
            self._next_watch = 0.0
            self._rouse()

    def stop(self) -> None:
        self._stopping = True
        self._rouse()
        if self._thread is not threading.current_thread():
            self._thread.join(10)

    @property
    def ident(self) -> int | None:
        """Its thread."""
        return self._thread.ident

    # Jobs

    def drive(self, connection: LockConnection) -> None:
        """Goes on with the connection's round trip, or begins one. The courier has its duty."""
        if connection.broken is None:
            self._advance(connection, connection.trip or connection.serve())

    def stand_in_queue(self, connection: LockConnection, line: Line) -> None:
        with self._hub.mutex:
            left = max((ticket.deadline.remaining for ticket in line.waiting), default=0.0)
        if connection.broken is None:
            milliseconds = max(1, round(min(left, WAIT_SECONDS) * 1000))
            self._advance(connection, connection.wait_for(line, milliseconds))

    def _advance(self, connection: LockConnection, trip: Trip) -> None:
        connection.trip = trip
        try:
            next(trip)
        except StopIteration:
            connection.trip = None
            self._unregister(connection)
            self._hub.end_duty(connection)
        except Exception as error:  # the driver's, or a mistake of ours: not to be trusted any more, either way
            self._unregister(connection)
            self._hub.broke(connection, error)
        else:
            if connection not in self._registered:
                self._registered.add(connection)
                self._selector.register(connection.socket, selectors.EVENT_READ, connection)

    def _unregister(self, connection: LockConnection) -> None:
        if connection in self._registered:
            self._registered.discard(connection)
            self._selector.unregister(connection.socket)

    # The loop

    def _run(self) -> None:
        while not self._stopping:
            self._sleeps = True
            # Jobs that came before this line are seen here, those that come after it rouse it.
            timeout = 0.0 if self._jobs else self._timeout()
            for key, _ in self._selector.select(timeout):
                if key.data is None:
                    self._nudge.clear()
                elif key.data in self._registered:
                    self._advance(key.data, key.data.trip)
            self._sleeps = False
            for _ in range(len(self._jobs)):
                self._jobs.popleft()()
            now = time.monotonic()
            if self._hub.wishes.polled and now >= self._next_poll:
                self._next_poll = now + POLL_SECONDS
                self._hub.try_polled()
            if now >= self._next_watch:
                self._watch_all()
        self._selector.close()

    def _timeout(self) -> float | None:
        due = min(self._next_poll if self._hub.wishes.polled else inf, self._next_watch)
        return None if due == inf else max(0.0, due - time.monotonic())

    def _watch_all(self) -> None:
        busy = self._hub.look_at_idle_connections()
        with self._hub.mutex:  # watch() is called under it: a lock got since that look is not missed
            self._quiet = 0 if busy else self._quiet + 1
            self._next_watch = time.monotonic() + WATCH_SECONDS if self._quiet < _QUIET_WATCHES else inf

    def _rouse(self) -> None:
        if self._sleeps and threading.current_thread() is not self._thread:
            self._nudge.give()
