"""The effect of asking a lock connection for something, for threads and for tasks.

A thread that finds the connection free serves it itself, one batch, with what others have asked meanwhile: no other
thread has to be woken for an uncontended lock. A thread that finds it busy sleeps, and may be offered the duty when the
batch under way has ended. A task leaves it to the courier.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import GeneratorType

import psycopg

from ...deadline import Deadline
from ...flow import Wakeup
from .connection import LockConnection
from .hub import Hub
from .requests import Request


class Errand:
    __slots__ = ("_connection", "_deadline", "_hub", "_request", "_settled", "_wakeup")

    def __init__(
        self,
        hub: Hub,
        request: Request,
        wakeup: Wakeup,
        deadline: Deadline,
        settled: Callable[[], bool],
        connection: LockConnection | None = None,
    ) -> None:
        self._hub = hub
        self._request = request
        self._wakeup = wakeup
        self._deadline = deadline
        self._settled = settled
        """Whether the caller has what it came for."""
        self._connection = connection

    def block(self) -> None:
        hub, request, settled = self._hub, self._request, self._settled
        request.can_serve = True
        ours = hub.submit(request, self._connection)
        while True:
            if ours is not None:
                serve_one_batch(hub, ours, self._deadline)
            if settled() or self._deadline.passed:
                return
            self._wakeup.sleep(self._deadline).block()
            ours = hub.accept_duty(request)

    async def suspend(self) -> None:
        hub = self._hub
        connection = hub.submit(self._request, self._connection)
        if connection is not None:
            hub.courier.call(partial(hub.courier.drive, connection))
        if not self._settled():
            await self._wakeup.sleep(self._deadline).suspend()


def serve_one_batch(hub: Hub, connection: LockConnection, deadline: Deadline) -> None:
    """One round trip in this thread. Left at the deadline, or by Ctrl-C, the courier brings it to its end."""
    trip = connection.trip = connection.serve()
    try:
        for _ in trip:
            if not connection.readable(deadline.remaining):
                hub.courier.call(partial(hub.courier.drive, connection))
                return
    except psycopg.Error as error:
        hub.broke(connection, error)
    except BaseException:
        if isinstance(trip, GeneratorType) and trip.gi_frame is None:
            # It struck inside the trip: nobody knows what the server did. Such a connection is not used again.
            hub.broke(connection, psycopg.OperationalError("interrupted in the middle of a round trip"))
        else:
            hub.courier.call(partial(hub.courier.drive, connection))
        raise
    else:
        connection.trip = None
        hub.end_duty(connection)
