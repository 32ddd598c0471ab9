"""Engines that break their promises, each in one way. The contract suite must find every one of them out."""

from typing import Any

from holdfast import Deadline
from holdfast.engines.base import Capabilities
from holdfast.engines.memory import MemoryEngine
from holdfast.flow import Flow, at_once
from holdfast.ticket import Ticket


class Sound(MemoryEngine):
    """Not broken: an engine of one's own, found by the name of the function that makes it. It has no short ways."""

    def grab(self, ticket: Ticket) -> bool | None:
        return None

    def drop(self, ticket: Ticket) -> bool:
        return False


class LetsEverybodyIn(Sound):
    def acquire(self, ticket: Ticket) -> Flow[bool]:
        ticket.granted(fence=1)
        return at_once(True)


class NeverReleases(Sound):
    def release(self, ticket: Ticket) -> Flow[None]:
        return at_once(None)


class ForgetsCancelledWaiters(Sound):
    def acquire(self, ticket: Ticket) -> Flow[bool]:
        if self._space.enter(ticket):
            return True
        if ticket.wakeup is None:
            return False
        yield ticket.wakeup.sleep(ticket.deadline)
        return self._space.leave(ticket)


class StartsItsDeadlineAgain(Sound):
    def acquire(self, ticket: Ticket) -> Flow[bool]:
        if ticket.waits and ticket.wait is not None:
            ticket.deadline = Deadline.after(ticket.wait + 2)
        return super().acquire(ticket)


class SameFenceForAll(Sound):
    def acquire(self, ticket: Ticket) -> Flow[bool]:
        granted = yield from super().acquire(ticket)
        ticket.fence = 7
        return granted


class ReleasesWhoeverHolds(Sound):
    def release(self, ticket: Ticket) -> Flow[None]:
        holder = self._space.holder(ticket.wire)
        return super().release(holder if holder is not None else ticket)


class EvictsInSilence(Sound):
    def evict(self, key: Any, *, force: bool) -> Flow[bool]:
        ticket = self._space.holder(self.wire(key))
        if ticket is not None:
            self._space.pass_on(ticket)
        return at_once(ticket is not None)


class DeclaresWhatItHasNot(Sound):
    capabilities = Capabilities(fenced=True, fair=True, detachable=True, expiring=True, scope="process")


class ForgetsToDeclare(Sound):
    capabilities = Capabilities(fenced=True, fair=True, scope="process")
