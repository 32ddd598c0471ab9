"""The queue of one process for each lock: who has it, who waits for it, in the order of arrival.

Every operation is short, runs under one mutex and never waits, so threads and tasks of any loop can share it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

from .. import fork
from ..ticket import State, Ticket
from .late import Late, refuse_amid


class Queue:
    """The holder of one lock and its waiters."""

    __slots__ = ("holder", "waiting")

    def __init__(self, holder: Ticket) -> None:
        self.holder = holder
        self.waiting: OrderedDict[Ticket, None] = OrderedDict()


class Queues(Late):
    """The queues of one place, by wire key. A lock that is neither held nor waited for has none."""

    def __init__(self) -> None:
        super().__init__()
        self._by_wire: dict[Hashable, Queue] = {}
        fork.in_child(self._start_afresh)

    def grant(self, ticket: Ticket) -> None:
        """Called under the mutex, so that what it hands out (a fence) is in the order of the grants."""
        ticket.granted()

    def take_if_free(self, ticket: Ticket) -> bool:
        """Takes the lock if it is free, else does nothing."""
        refuse_amid(self.mutex, ticket)
        try:
            with self.mutex:
                if ticket.wire in self._by_wire:
                    return False
                # The ticket first: should Ctrl-C strike between the two, it says that there is something to undo.
                self.grant(ticket)
                self._by_wire[ticket.wire] = Queue(ticket)
                return True
        finally:
            if self.late:
                self.catch_up()

    def enter(self, ticket: Ticket) -> bool:
        """Takes the lock if it is free; else puts a ticket that waits at the end of its queue."""
        refuse_amid(self.mutex, ticket)
        try:
            with self.mutex:
                queue = self._by_wire.get(ticket.wire)
                if queue is None:
                    self.grant(ticket)  # first, as above
                    self._by_wire[ticket.wire] = Queue(ticket)
                    return True
                if ticket.waits:
                    ticket.arm()
                    queue.waiting[ticket] = None
                return False
        finally:
            if self.late:
                self.catch_up()

    def leave(self, ticket: Ticket) -> bool:
        """Ends the ticket's wait, if it has one. True if it has been granted the lock."""
        if self.put_off(self.leave_late, ticket):
            return ticket.state is not State.WAITING
        with self.mutex:
            queue = self._by_wire.get(ticket.wire)
            if queue is not None:
                queue.waiting.pop(ticket, None)
            granted = ticket.state is not State.WAITING  # also if it was evicted already: a loss, not a busy lock
        if self.late:
            self.catch_up()
        return granted

    def pass_on(self, ticket: Ticket) -> None:
        """Ends the ticket's hold, if it has one: the first waiter that can still be woken gets the lock."""
        if self.put_off(self.pass_on, ticket):
            return
        with self.mutex:
            self._pass_on(ticket)
        if self.late:
            self.catch_up()

    def _pass_on(self, ticket: Ticket) -> None:
        queue = self._by_wire.get(ticket.wire)
        if queue is None or queue.holder is not ticket:
            return
        while queue.waiting:
            heir = next(iter(queue.waiting))
            try:
                handed = self._hand_to(heir, queue)
            except BaseException:  # Ctrl-C: the heir has its place to lose, and a second time does no harm
                self._hand_to(heir, queue)
                raise
            if handed:
                return
        del self._by_wire[ticket.wire]

    def _hand_to(self, heir: Ticket, queue: Queue) -> bool:
        # It cannot look at its state before this mutex is free again. Without a wakeup it was woken before.
        woken = heir.wakeup is None or heir.wakeup.wake()
        queue.waiting.pop(heir, None)
        if woken:
            self.grant(heir)
            queue.holder = heir
            heir.wakeup = None  # it leads to the task: one whose loop is closed now could never be collected
        return woken

    def holder(self, wire: Hashable) -> Ticket | None:
        queue = self._by_wire.get(wire)
        return None if queue is None else queue.holder

    def snapshot(self) -> list[tuple[Ticket, int]]:
        """Every holder with the number of its waiters."""
        with self.mutex:
            found = [(queue.holder, len(queue.waiting)) for queue in self._by_wire.values()]
        self.catch_up()
        return found

    def _start_afresh(self) -> None:
        self.start_afresh()
        self._by_wire = {}
