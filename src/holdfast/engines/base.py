"""The contract between the clients and an engine. An engine is done when ``holdfast.testing``'s suite passes on it."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable
from typing import Final, Literal, NamedTuple

from ..deadline import Deadline
from ..errors import Unsupported
from ..flow import Flow, Wakeup, at_once
from ..keys import Key
from ..ticket import State, Ticket

NOT_DETACHABLE: Final = "its locks end with the block or the process that took them"


class Capabilities(NamedTuple):
    """What an engine can do. Asking for what it has not is ``Unsupported``, at once."""

    fenced: bool = False
    """Every grant carries a number that only grows."""
    fair: bool = False
    """Waiters are served in the order of their arrival, wherever they wait."""
    expiring: bool = False
    """Locks are leases: they take a ``ttl``, are renewed, and end by themselves when their holder is gone."""
    detachable: bool = False
    """A lock can outlive its block and be taken up again by its token."""
    scope: Literal["process", "machine", "network"] = "network"
    """How far apart two holders may be for the engine to keep them apart."""


class Holder(NamedTuple):
    """One held lock, as an operator sees it."""

    key: str
    """The text form of the key."""
    owner: str
    """The thread or task, as far as it is known; or the owner that the caller chose."""
    pid: int | None
    host: str
    since: float | None
    """Seconds since the epoch."""
    note: str | None
    fence: int | None
    waiting: int | None
    """How many wait for it, where the engine can tell."""
    here: bool
    """Whether the holder is in this process."""


class Eviction(NamedTuple):
    """What became of an ``evict``: true if there was a holder."""

    happened: bool
    others: int = 0
    """How many other locks went with it, since they lived on the connection that had to be ended."""

    def __bool__(self) -> bool:
        return self.happened


def describe(ticket: Ticket) -> str:
    """Who holds the ticket, for people."""
    if ticket.state is State.DETACHED:
        return "detached"
    if ticket.owner_text is not None:
        return ticket.owner_text
    return ticket.owner.name if ticket.owner is not None else ""


def told(ticket: Ticket) -> str:
    """Who holds the ticket of this process, since when and what for, in one clause."""
    note = f" ({ticket.note})" if ticket.note else ""
    return f"{describe(ticket)} of this process for {max(0.0, time.time() - ticket.since):.1f} s{note}"


class Engine(ABC):
    """One place where locks live. Every operation is a flow (see ``holdfast.flow``), so that it serves sync and async.

    Re-entry, lock order, deadlines and what is on the handle are the clients' business, not the engine's.
    """

    scheme: str
    capabilities: Capabilities

    @property
    @abstractmethod
    def server(self) -> Hashable:
        """The place itself: equal for two engines of this process exactly if they lock against each other."""

    @property
    def ready(self) -> bool:
        """Whether ``open`` need not be called."""
        return True

    def open(self, deadline: Deadline, new_wakeup: Callable[[], Wakeup]) -> Flow[None]:
        """Gets ready: called first, while ``ready`` is false. ``server`` is asked for afterwards."""
        return at_once(None)

    @abstractmethod
    def wire(self, key: Key) -> Hashable:
        """What the key is called there. Keys with equal wire keys are one lock."""

    @abstractmethod
    def acquire(self, ticket: Ticket) -> Flow[bool]:
        """Waits for the lock until ``ticket.deadline``, or tries once if ``ticket.waits`` is false.

        Calls ``ticket.granted`` the moment the lock is got, then returns True. Returns False when it was busy. When
        interrupted, nothing of this ticket's may be left, unless ``ticket.held`` says so. ``ticket.wakeup.wake()`` may
        come at any time with ``ticket.deadline`` passed (the client is being closed): then return.
        """

    def grab(self, ticket: Ticket) -> bool | None:
        """``acquire`` by the shortest way, where there is one for this ticket: a plain call costs less than a flow.

        None, and nothing has been done, if there is none.
        """
        return None

    @abstractmethod
    def release(self, ticket: Ticket) -> Flow[None]:
        """Gives back what was granted to the ticket, and only that. A second call finds nothing to do."""

    def drop(self, ticket: Ticket) -> bool:
        """``release`` by the shortest way. False if there is none for this ticket."""
        return False

    def let_go(self, ticket: Ticket) -> None:
        """Releases where nobody can wait for it: in a coroutine that the garbage collector ends."""
        next(self.release(ticket), None)  # as far as it goes without waiting, which for most engines is all the way

    def take_back(self, ticket: Ticket) -> Flow[None]:
        """Releases for a client that is being closed. It need not wait for the end of it: ``close`` comes next."""
        return self.release(ticket)

    @abstractmethod
    def holders(self) -> Flow[list[Holder]]:
        """Every lock that is held there."""

    def holder(self, key: Key) -> Flow[Holder | None]:
        """Who holds this one, if anybody does."""
        found = yield from self.holders()
        return next((holder for holder in found if holder.key in self.shown_as(key)), None)

    def shown_as(self, key: Key) -> tuple[str, ...]:
        """What ``holders`` may call the key."""
        return (key.text,)

    @abstractmethod
    def evict(self, key: Key, *, force: bool) -> Flow[bool | Eviction]:
        """Takes the lock from its holder, who is told. False if nobody holds it.

        With ``force`` also from a holder that does not answer, if there is a way; an ``Eviction`` says at what price.
        """

    def extend(self, ticket: Ticket, ttl: float) -> Flow[None]:
        """Sets what remains of the lease to ``ttl`` seconds."""
        raise self.unsupported("extend()", "its locks have no lease; they last until they are released", ticket.key)

    def detach(self, ticket: Ticket) -> Flow[str]:
        """Leaves the lock held with nobody in charge. Returns the secret by which ``attach`` finds it."""
        raise self.unsupported("detach()", NOT_DETACHABLE, ticket.key)

    def attach(self, ticket: Ticket, secret: str) -> Flow[bool]:
        """Grants the ticket the detached lock that has this secret. False if there is none (any more)."""
        raise self.unsupported("attach()", NOT_DETACHABLE, ticket.key)

    def extend_detached(self, key: Key, secret: str, ttl: float) -> Flow[bool]:
        """Sets what remains of a detached lock's lease, and leaves it detached. False if the secret has no lock."""
        raise self.unsupported("extend_detached()", "its locks have no lease; they last until they are released", key)

    def release_detached(self, key: Key, secret: str) -> Flow[bool]:
        """Releases a detached lock. False if the secret has none (any more)."""
        raise self.unsupported("release_detached()", NOT_DETACHABLE, key)

    def close(self) -> Flow[None]:
        """Gives up what the engine itself keeps open. The client has released its locks before."""
        return at_once(None)

    def who_holds(self, ticket: Ticket) -> str:
        """What is known here, without asking anyone, of who holds the ticket's lock: a clause for an error message."""
        return ""

    def unsupported(self, what: str, why: str, key: Key | None) -> Unsupported:
        about = f" ({key})" if key is not None else ""
        return Unsupported(f"{what}{about}: the {self.scheme} engine cannot: {why}", key=key)
