"""``memory://name``: locks of one process. Threads, and tasks of any loop, share the space of one name."""

from __future__ import annotations

import os
from collections.abc import Hashable
from functools import cached_property
from secrets import compare_digest, token_urlsafe

from ..errors import InvalidOption
from ..flow import Flow, at_once
from ..keys import Key
from ..ticket import State, Ticket
from .base import Capabilities, Engine, Eviction, Holder, describe, told
from .fence import next_fence
from .late import refuse_amid
from .queue import Queues
from .shared import Shared


class Space(Queues):
    """All locks of one name."""

    _last_fence = 0

    def grant(self, ticket: Ticket) -> None:
        self._last_fence = fence = next_fence(self._last_fence)
        ticket.granted(fence=fence)

    def enter(self, ticket: Ticket) -> bool:
        former = self._take_over(ticket) if ticket.owner_text is not None else None
        if former is None:
            return super().enter(ticket)
        former.tell_lost()
        return True

    def _take_over(self, ticket: Ticket) -> Ticket | None:
        """Gives the ticket the lock if its owner holds it already. The older ticket, which has lost it."""
        refuse_amid(self.mutex, ticket)
        try:
            with self.mutex:
                queue = self._by_wire.get(ticket.wire)
                if queue is None or queue.holder.owner_text != ticket.owner_text:
                    return None
                former = queue.holder
                former.mark_lost("its owner has taken it anew")
                self.grant(ticket)
                queue.holder = ticket
                return former
        finally:
            self.catch_up()

    def take_up(self, ticket: Ticket, secret: str) -> bool:
        """Grants ``ticket`` the detached lock that has this secret; one attempt of several wins."""
        try:
            return self._take_up(ticket, secret)
        finally:
            self.catch_up()

    def _take_up(self, ticket: Ticket, secret: str) -> bool:
        with self.mutex:
            queue = self._by_wire.get(ticket.wire)
            if queue is None or not _has_secret(queue.holder, secret):
                return False
            ticket.granted(fence=queue.holder.fence)
            ticket.owner_text = queue.holder.owner_text
            queue.holder = ticket
            return True

    def release_detached(self, wire: Hashable, secret: str) -> bool:
        try:
            with self.mutex:
                queue = self._by_wire.get(wire)
                if queue is None or not _has_secret(queue.holder, secret):
                    return False
                self._pass_on(queue.holder)
                return True
        finally:
            self.catch_up()


def _has_secret(holder: Ticket, secret: str) -> bool:
    return holder.state is State.DETACHED and compare_digest(
        holder.engine_state.encode(), secret.encode("utf-8", "replace")
    )


_spaces: Shared[Space] = Shared()


class MemoryEngine(Engine):
    """Served in strict order of arrival, fenced, and detachable within the process. Locks end with the process."""

    scheme = "memory"
    capabilities = Capabilities(fenced=True, fair=True, detachable=True, scope="process")

    def __init__(self, name: str = "") -> None:
        self.name = name
        self._space = _spaces.take(name, Space)

    @classmethod
    def from_url(cls, place: str, options: dict[str, object]) -> MemoryEngine:
        if options:
            raise InvalidOption(f"{', '.join(sorted(options))}: the memory engine takes no such option")
        return cls(place)

    @cached_property
    def server(self) -> Hashable:
        return ("memory", self.name)

    def wire(self, key: Key) -> Hashable:
        return key.text

    def grab(self, ticket: Ticket) -> bool | None:
        return self._space.take_if_free(ticket) or None

    def drop(self, ticket: Ticket) -> bool:
        self._space.pass_on(ticket)
        return True

    def acquire(self, ticket: Ticket) -> Flow[bool]:
        granted = False
        try:
            granted = self._space.enter(ticket)
            if not granted and (wakeup := ticket.wakeup):
                yield wakeup.sleep(ticket.deadline)
        finally:
            # Around all of it: Ctrl-C before the sleep must not leave the ticket in the queue, to be granted a lock.
            if not granted:
                try:
                    granted = self._space.leave(ticket)
                except KeyboardInterrupt:  # struck in there
                    self._space.leave(ticket)
                    raise
        return granted

    def release(self, ticket: Ticket) -> Flow[None]:
        self._space.pass_on(ticket)
        return at_once(None)

    def detach(self, ticket: Ticket) -> Flow[str]:
        ticket.engine_state = secret = token_urlsafe(16)
        return at_once(secret)

    def attach(self, ticket: Ticket, secret: str) -> Flow[bool]:
        return at_once(self._space.take_up(ticket, secret))

    def release_detached(self, key: Key, secret: str) -> Flow[bool]:
        return at_once(self._space.release_detached(self.wire(key), secret))

    def holders(self) -> Flow[list[Holder]]:
        return at_once([self._holder(ticket, waiting) for ticket, waiting in self._space.snapshot()])

    def _holder(self, ticket: Ticket, waiting: int) -> Holder:
        return Holder(
            key=ticket.key.text,
            owner=describe(ticket),
            pid=os.getpid(),
            host="",
            since=ticket.since,
            note=ticket.note,
            fence=ticket.fence,
            waiting=waiting,
            here=True,
        )

    def who_holds(self, ticket: Ticket) -> str:
        holder = self._space.holder(ticket.wire)
        return "" if holder is None else f"; held by {told(holder)}"

    def evict(self, key: Key, *, force: bool) -> Flow[bool | Eviction]:
        ticket = self._space.holder(self.wire(key))
        if ticket is None:
            return at_once(False)
        if ticket.state is not State.DETACHED and not ticket.lose("it was evicted"):
            return at_once(False)  # released in this very moment
        self._space.pass_on(ticket)
        return at_once(True)

    def __repr__(self) -> str:
        return f"memory://{self.name}"
