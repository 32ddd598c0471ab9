"""What this process has at one server: who waits there, who holds, and what is still to be given back.

Shared by all clients of that server. Nothing here waits; what has to is the engine's or the attendant's.
"""

from __future__ import annotations

import atexit
from math import inf
from threading import RLock, Thread
from time import monotonic
from typing import Any

from ... import fork
from ...ticket import State
from ..shared import Shared
from .attendant import Attendant
from .backend import ASK_AGAIN, LeaseBackend, Released
from .lease import Lease


class Errand:
    """A token whose lock, offer or place in a queue is to be given up."""

    __slots__ = ("at", "name", "times", "token", "until", "was_retry")

    def __init__(self, lease: Lease) -> None:
        self.name = lease.name
        self.token = lease.token
        self.at = inf
        """When the attendant does it: never, while its caller is about to do it."""
        self.times = 2 if lease.unanswered else 1
        """The server may come late to a request whose answer nobody saw: then it is given up twice."""
        self.until = monotonic() + max(lease.ttl, 2 * ASK_AGAIN)
        """When the server has forgotten it by itself."""
        self.was_retry = lease.unanswered and lease.ticket.owner_text is not None
        """Whether it may have taken the lock from an older handle of its owner, which no answer has told so."""


class House:
    def __init__(self, backend: LeaseBackend) -> None:
        self.backend = backend
        backend.messages = self
        self.closed = False
        self._begin()
        fork.in_child(self._begin)

    def _begin(self) -> None:
        # Re-entrant: the garbage collector may end an abandoned block in a thread that is in here.
        self.mutex: Any = RLock()
        self.leases: dict[str, Lease] = {}
        """By label: all that wait or hold."""
        self.errands: dict[str, Errand] = {}
        self._attendant: Attendant | None = None

    @property
    def attendant(self) -> Attendant:
        assert self._attendant is not None
        return self._attendant

    @property
    def is_attending(self) -> bool:
        """Whether this very thread serves all of the house, and must not wait for one: the collector runs anywhere."""
        return self._attendant is not None and self._attendant.is_this_thread

    # A lease comes, is held, goes

    def enter(self, lease: Lease) -> None:
        """Before anything is asked of the server: a message may come before the answer."""
        with self.mutex:
            if self._attendant is None:
                self._attendant = Attendant(self)
            self.leases[lease.label] = lease

    def granted(self, lease: Lease, fence: int, asked_at: float) -> None:
        """The server has given it the lock, in answer to a request that was sent at ``asked_at`` or later."""
        ticket = lease.ticket
        with self.mutex:
            if ticket.state is not State.WAITING:  # told twice, by the answer to another's release and to its own
                return
            ticket.expires_at = asked_at + lease.ttl
            ticket.granted(fence=fence, engine_state=lease)
            if fence <= lease.lost_fence:
                ticket.mark_lost(lease.lost_reason)
        self.attendant.look_by(lease.renew_at)

    def inherited(self, label: str, fence: int, asked_at: float) -> None:
        """A waiter of this process got the lock by another's release, whose answer says so."""
        with self.mutex:
            heir = self.leases.get(label)
            if heir is None or heir.ticket.state is not State.WAITING:  # it has left and gives it back, or knows
                return
            wakeup = heir.ticket.wakeup
            if wakeup is not None and wakeup.wake():  # it cannot look at its state before the mutex is free again
                self.granted(heir, fence, asked_at)
                heir.ticket.wakeup = None  # leads to the task: one whose loop is closed now could not be collected
                return
        self.give_up(heir)

    def pass_on(self, released: Released, asked_at: float) -> None:
        """To the waiter of this process that has it now, if there is one."""
        if released.heir is not None:
            self.inherited(released.heir, released.fence, asked_at)

    def leave(self, lease: Lease) -> bool:
        """Ends its wait, if it has one. True if it has been granted the lock; else it is to be given back."""
        with self.mutex:
            if lease.ticket.state is not State.WAITING:
                return True
            self._to_give_back(lease)
        return False

    def forget(self, lease: Lease) -> bool:
        """Ends its hold. True for the one caller that made it so, and then is to give it back."""
        with self.mutex:
            if lease.label not in self.leases:
                return False
            self._to_give_back(lease)
            return True

    def _to_give_back(self, lease: Lease) -> None:
        # Noted before anything is done about it, so that Ctrl-C at any line leaves the note. Whoever does it says so.
        self.errands[lease.label] = Errand(lease)
        self.leases.pop(lease.label, None)

    def given_back(self, lease: Lease) -> None:
        self.errands.pop(lease.label, None)

    def give_up(self, lease: Lease) -> None:
        """Leaves it to the attendant to give it back."""
        self._to_give_back(lease)
        self.hurry(lease)

    def hurry(self, lease: Lease) -> None:
        """If it is still to be given back, the attendant does it now."""
        errand = self.errands.get(lease.label)
        if errand is not None and self._attendant is not None:
            errand.at = 0.0
            self._attendant.look_by(0.0)

    def drop(self, lease: Lease) -> None:
        """It came to nothing: there is nothing to give back."""
        self.leases.pop(lease.label, None)

    def lose(self, lease: Lease, reason: str) -> None:
        """The lock is not the holder's any more. Its callback may take its time, or locks: a thread of its own."""
        ticket = lease.ticket
        if ticket.mark_lost(reason):
            Thread(target=ticket.tell_lost, name="holdfast-loss", daemon=True).start()

    def holder_here(self, name: str) -> Lease | None:
        with self.mutex:
            return next((lease for lease in self.leases.values() if lease.name == name and lease.held), None)

    # Messages

    def offered(self, label: str) -> None:
        self._ask_at(label, 0.0)

    def look_again(self, label: str, seconds: float) -> None:
        self._ask_at(label, monotonic() + seconds)

    def taken_away(self, label: str, fence: int, reason: str) -> None:
        with self.mutex:
            lease = self.leases.get(label)
            if lease is None:
                return
            if lease.ticket.state is State.WAITING:
                lease.lost_fence, lease.lost_reason = max(fence, lease.lost_fence), reason
                return
            if (lease.ticket.fence or 0) > fence:  # that was an offer, which it did not take up
                return
        self.lose(lease, reason)

    def taken_anew(self, lease: Lease, fence: int) -> None:
        """Granted by way of its owner, maybe from an older handle: whoever had the lock before has lost it."""
        with self.mutex:
            older = [other.label for other in self.leases.values() if other.name == lease.name and other is not lease]
        for label in older:
            self.taken_away(label, fence - 1, "its owner has taken it anew")

    def remade(self) -> None:
        """Every waiter asks again; every holder asks whether it is one, and says where it is to be told."""
        with self.mutex:
            labels = list(self.leases)
        for label in labels:
            self._ask_at(label, 0.0)
        if self._attendant is not None:
            self._attendant.renew_all()

    def ask_again_for(self, name: str) -> None:
        """An answer was lost that may have told a waiter of this process that it has the lock."""
        with self.mutex:
            labels = [lease.label for lease in self.leases.values() if lease.name == name]
        for label in labels:
            self._ask_at(label, 0.0)

    def _ask_at(self, label: str, at: float) -> None:
        with self.mutex:
            lease = self.leases.get(label)
            if lease is None or lease.ticket.state is not State.WAITING:
                return
            lease.ask_at = min(lease.ask_at, at)
            wakeup = lease.ticket.wakeup
            if wakeup is None or wakeup.wake():
                return
        self.give_up(lease)  # its loop is closed

    # The end

    def close(self) -> None:
        self.closed = True
        if self._attendant is not None:
            self._attendant.stop()
        self.backend.close()


houses: Shared[House] = Shared()
"""By server."""


def _give_all_back() -> None:
    """The interpreter ends, and with it what still holds locks: daemon threads, blocks that were never left."""
    for house in houses.all():
        for lease in list(house.leases.values()):
            lease.ticket.mark_lost("its process ends")
            house.give_up(lease)
        house.close()


atexit.register(_give_all_back)
