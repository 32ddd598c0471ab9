"""The connections of this process to one address, shared by all clients that were given it: one for all threads, one
for each event loop, and one on which this process is called (see ``listener``)."""

from __future__ import annotations

import sys
from math import inf
from threading import RLock, Thread, get_ident
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from ... import fork
from ...deadline import Deadline
from ...errors import BackendUnavailable, ClientClosed
from ...flow import TaskWakeup, ThreadWakeup, Wakeup
from ...owner import running_loop
from ..shared import Shared
from .address import OPEN_SECONDS, Address, Opened
from .listener import Listener, Mailbox
from .wire import LoopWire, ThreadWire

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Task


class Link:
    def __init__(self, address: Address) -> None:
        self.address = address
        self.database = ""
        self.clustered = False
        self._begin()
        fork.in_child(self._start_afresh)

    def _begin(self) -> None:
        self.wire: ThreadWire | None = None
        self._in_loops: dict[Any, LoopWire] = {}  # copied before it is gone through: every loop's thread adds to it
        self._recent: LoopWire | None = None  # most processes have one loop: to look there takes longer
        self._opening_in: WeakKeyDictionary[Any, Task[LoopWire]] = WeakKeyDictionary()
        self._listener: Listener | None = None
        self._opening: Any = RLock()  # re-entrant only to know its owner
        self._closed = False

    @property
    def ready(self) -> bool:
        return self.wire is not None and self.wire.broken is None

    @property
    def amid(self) -> bool:
        """Whether this thread is at work on the connections, and so must not wait for an answer on them."""
        return (
            (self.wire is not None and self.wire.amid)
            or self._opening._is_owned()
            or (self._listener is not None and self._listener.ident == get_ident())
        )

    # Opening

    def open(self, deadline: Deadline, mailbox: Mailbox) -> None:
        """Connects, and has the mailbox reachable. Blocks."""
        if self._opening._is_owned():
            raise BackendUnavailable("Redis: asked for by a finaliser or signal handler while connecting")
        if not self._opening.acquire(timeout=min(deadline.remaining, 2 * OPEN_SECONDS)):
            raise BackendUnavailable("Redis could not be reached in time")
        try:
            if self._closed:
                raise ClientClosed
            if not self.ready:
                listener = self._listening()
                self.wire = ThreadWire(self._connect(deadline.remaining).socket, lambda: self._unattended(listener))
            if not mailbox.open.is_set():
                self._listening().add(mailbox)
        finally:
            self._opening.release()
        if not mailbox.open.wait(min(deadline.remaining, OPEN_SECONDS)):
            raise BackendUnavailable("Redis did not confirm the subscription in time")

    def _listening(self) -> Listener:
        if self._listener is None:
            listener = Listener(self._connect, self.close_orphans)
            listener.start()
            self._listener = listener
        return self._listener

    def _connect(self, patience: float = OPEN_SECONDS) -> Opened:
        opened = self.address.open(patience)
        self.database, self.clustered = opened.database, opened.clustered
        return opened

    def _unattended(self, listener: Listener) -> None:
        if self.wire is not None:
            listener.attend(self.wire)

    # Connections of event loops

    def wire_in(self, loop: AbstractEventLoop) -> LoopWire | None:
        wire = self._recent
        if wire is None or wire.loop is not loop:
            self._recent = wire = self._in_loops.get(loop)
        return wire if wire is not None and wire.broken is None else None

    async def open_in(self, loop: AbstractEventLoop, deadline: Deadline) -> LoopWire | None:
        """A connection of the loop's own, which all its tasks share. None if there is none by the deadline."""
        asyncio = sys.modules["asyncio"]
        opening = self._opening_in.get(loop)
        if opening is None:
            opening = self._opening_in[loop] = loop.create_task(self._open_in(loop))
            opening.add_done_callback(lambda task: task.cancelled() or task.exception())  # whoever asked may have left
        await asyncio.wait([opening], timeout=None if deadline.at == inf else deadline.remaining)
        return opening.result() if opening.done() else None

    async def _open_in(self, loop: AbstractEventLoop) -> LoopWire:
        asyncio = sys.modules["asyncio"]
        try:
            opened: Opened = await asyncio.to_thread(self._connect)
            if self._closed:
                opened.socket.close()
                raise ClientClosed
            self.close_orphans()
            self._in_loops[loop] = self._recent = wire = LoopWire(opened.socket, loop)
            return wire
        finally:
            self._opening_in.pop(loop, None)

    def close_orphans(self) -> None:
        """Gives up connections whose loop was closed: nobody would receive what is still to come there."""
        for loop, wire in self._in_loops.copy().items():
            if wire.orphaned:
                self._in_loops.pop(loop, None)
                self._recent = None
                wire.break_off(RuntimeError("its event loop was closed"))

    def drop(self, reason: str) -> None:
        """The server is not (or no more) one that keeps locks: connects anew, which may lead to another."""
        if self.wire is not None:
            self.wire.break_off(ConnectionError(reason))
        loop = running_loop()
        if loop is not None and (wire := self.wire_in(loop)) is not None:
            wire.break_off(ConnectionError(reason))

    def remove(self, mailbox: Mailbox) -> None:
        if self._listener is not None:
            self._listener.remove(mailbox)

    # The end

    def close(self) -> None:
        self._closed = True
        if self._listener is not None:
            self._listener.stop()
        if self.wire is not None:
            self.wire.break_off(ClientClosed())
        for loop, wire in self._in_loops.copy().items():
            if wire.broken is None:
                try:
                    loop.call_soon_threadsafe(wire.break_off, ClientClosed())
                except RuntimeError:  # the loop is closed
                    wire.close()

    def _start_afresh(self) -> None:
        """In a forked child: the connections are the parent's."""
        for wire in [self.wire, *self._in_loops.values()]:
            if wire is not None:
                wire.abandon_in_child()
        if self._listener is not None:
            self._listener.abandon_in_child()
        self._begin()


class Opening:
    """The effect of getting connected.

    In a thread of its own: Ctrl-C strikes in the main thread only, and there, not inside the driver. And nobody waits
    longer for it than to the deadline, not even a loop that ends.
    """

    __slots__ = ("_deadline", "_link", "_mailbox", "_outcome", "_wakeup")

    def __init__(self, link: Link, deadline: Deadline, mailbox: Mailbox) -> None:
        self._link = link
        self._deadline = deadline
        self._mailbox = mailbox
        self._wakeup: Wakeup | None = None
        self._outcome: list[BaseException | None] = []

    def block(self) -> None:
        wakeup = self._wakeup = ThreadWakeup()
        self._begin()
        wakeup.sleep(self._deadline).block()
        self._conclude()

    async def suspend(self) -> None:
        if self._wakeup is None:  # else its caller was cancelled and has come back
            self._wakeup = TaskWakeup()
            self._begin()
        await self._wakeup.sleep(self._deadline).suspend()
        self._conclude()

    def _begin(self) -> None:
        try:
            Thread(target=self._work, name="holdfast-connect", daemon=True).start()
        except RuntimeError as error:
            raise BackendUnavailable(f"Redis: no thread could be started to connect: {error}") from error

    def _work(self) -> None:
        assert self._wakeup is not None
        try:
            self._link.open(self._deadline, self._mailbox)
            self._outcome.append(None)
        except BaseException as error:
            self._outcome.append(error)
        self._wakeup.wake()

    def _conclude(self) -> None:
        if not self._outcome:
            raise BackendUnavailable("Redis could not be reached in time")
        if self._outcome[0] is not None:
            raise self._outcome[0]


_links: Shared[Link] = Shared()


def link_to(address: Address) -> Link:
    """The link that all users of one address share. Each gives it back once, by ``unlink``."""
    return _links.take(address.identity, lambda: Link(address))


def unlink(link: Link) -> None:
    last = _links.give_back(link.address.identity)
    if last is not None:
        last.close()
