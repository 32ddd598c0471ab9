"""Round trips driven from inside an event loop: no other thread has to be woken for a task's lock.

Each loop has a connection of its own, as far as there are enough, so that a loop which is kept busy by its tasks holds
up nobody else. Should it be kept busy, or be closed, in the middle of a round trip, the courier brings that to its end.
"""

from __future__ import annotations

from threading import Lock, get_ident
from typing import TYPE_CHECKING, Any

from ...flow import TaskWakeup, Wakeup
from ...owner import running_loop

if TYPE_CHECKING:
    from .connection import LockConnection


class Pilot:
    """Drives the connection that one loop has for its own."""

    def __init__(self, connection: LockConnection, loop: Any) -> None:
        self.loop: Any = loop
        self.serves = False
        """Whether the connection's duty is the pilot's."""
        self.steps = 0
        self.steps_seen = -1
        """What ``steps`` was when the courier last looked."""
        self.reading = False
        self._able = True
        """Whether the loop can look at a socket: not every kind can."""
        self._connection = connection
        self._stepping = Lock()

    def is_for(self, wakeup: Wakeup | None) -> bool:
        """Whether the request that ends at ``wakeup`` is from a task of this loop."""
        return isinstance(wakeup, TaskWakeup) and wakeup.loop is self.loop

    def begin(self) -> bool:
        """Takes the connection's duty over, for a batch: all that the loop's tasks ask for until it comes to it.

        False if the loop is closed, or cannot.
        """
        if not self._able:
            return False
        self.serves = True
        try:
            here = running_loop() is self.loop
            (self.loop.call_soon if here else self.loop.call_soon_threadsafe)(self._step)
        except RuntimeError:
            self.serves = False
        return self.serves

    def is_stuck(self) -> bool:
        """Whether a round trip has come no further since this was last asked."""
        stuck = self.serves and self.steps == self.steps_seen
        self.steps_seen = self.steps
        return stuck

    def retire(self) -> bool:
        """Takes the duty from the pilot, for somebody else to go on with the trip. False if it is at work just now."""
        if not self._stepping.acquire(blocking=False):
            return False
        try:
            retired, self.serves = self.serves, False
            return retired
        finally:
            self._stepping.release()

    def _step(self) -> None:
        """In the loop: called when a batch may begin, and when the server has said something."""
        if not self._stepping.acquire(blocking=False):
            return  # it is being retired in this very moment
        try:
            if self.serves:
                self._drive()
            else:
                self._heed()
        finally:
            self._stepping.release()

    def _drive(self) -> None:
        connection = self._connection
        self.steps += 1
        connection.served_by = get_ident()
        trip = connection.trip
        if trip is None:
            trip = connection.trip = connection.serve()
        try:
            next(trip)
        except StopIteration:
            connection.trip = None
            connection.hub.end_duty(connection)
        except BaseException as error:  # the driver's, or Ctrl-C: not to be trusted any more, either way
            self.serves = False
            connection.served_by = 0
            connection.hub.broke(connection, error)
            if not isinstance(error, Exception):
                raise
        else:
            if not self.reading:
                self._start_reading()

    def _start_reading(self) -> None:
        connection = self._connection
        with connection.hub.mutex:  # or it could be closed by another thread, and its number be another's
            if connection.broken is not None:
                return
            try:
                self.loop.add_reader(connection.socket, self._step)
            except NotImplementedError:
                self._able = self.serves = False
                connection.hub.drive_soon(connection)
            else:
                self.reading = True

    def _heed(self) -> None:
        """The server has said something unasked, or an answer has come that somebody else waits for."""
        connection, hub = self._connection, self._connection.hub
        with hub.mutex:
            idle = not connection.duty and connection.broken is None
            if idle:
                connection.duty = True
        if idle:
            hub.look_at(connection)
        else:
            self.stop_reading()

    def stop_reading(self) -> None:
        """In the loop."""
        if self.reading:
            self.reading = False
            self.loop.remove_reader(self._connection.socket)

    def leave_to_loop(self, close: Any) -> bool:
        """Has ``close`` called once the loop does not look at the socket any more, whose number may be reused then.

        False if it does not look at it now.
        """
        if not self.reading or self.loop.is_closed():
            return False
        if running_loop() is self.loop:
            self.stop_reading()
            return False

        def stop_and_close() -> None:
            self.stop_reading()
            close()

        try:
            self.loop.call_soon_threadsafe(stop_and_close)
        except RuntimeError:  # closed in this very moment
            return False
        return True
