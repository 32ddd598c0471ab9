"""How a server that keeps leases is asked. Every operation is a flow, and one round trip.

What every backend must keep:

- **The server's clock** decides when a lease ends, and nobody else's.
- **The token** is made by the caller before the first request, so that a request whose answer was lost is simply made
  again: it is answered with what is true. Its *label* (see ``lease.label_of``) is no secret, and names it in messages.
- **The queue** is in order of arrival, across all processes. A waiter keeps its place when it asks again.
- **The fence** is made by the server when the lock is given, and grows with every grant.
- **Handing over**: a lock that is given up goes to the first waiter that lives. If that one waits in the process that
  asks, the grant is complete, with the waiter's own ``ttl``, and is told in the answer. Else it is an *offer* of a
  short while (``WINDOW``), of which the waiter's process is told by a message; the waiter takes it up by asking again.
  The next waiter of another process is told to look again when that while is over: a process that died or stands still
  at the head of the queue costs one window.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from typing import Final, NamedTuple, Protocol

from ...deadline import Deadline
from ...errors import BackendUnavailable
from ...flow import Flow, Wakeup
from ..base import Holder

WINDOW: Final = 0.5
"""Seconds in which a waiter must take up what it was offered, before the next one is."""
ASK_AGAIN: Final = 10.0
"""Seconds after which a waiter asks again at the latest, whatever it was told: messages may be lost."""


class NoAnswer(BackendUnavailable):
    """The server did not answer in time; what was asked of it may be done all the same."""


class Wish(NamedTuple):
    """What is asked for, and what operators will see of it."""

    name: str
    token: str
    ttl: float
    waits: bool
    """Whether to stand in the queue if it is busy."""
    owner: str | None
    """The owner that the caller chose: a lock that is held by the same owner is given at once."""
    holder: str
    """The thread or task, for people."""
    note: str | None


class Answer(NamedTuple):
    """What came of a wish. All left out: it is busy, and the caller does not wait."""

    fence: int | None = None
    """Granted."""
    again: float | None = None
    """In the queue: ask again after so many seconds, or when a message says so."""


class Released(NamedTuple):
    was_ours: bool
    """Whether the token had the lock until now."""
    heir: str | None = None
    """The label of a waiter of this process that has it from now on."""
    fence: int = 0
    """The heir's."""


class Messages(Protocol):
    """What the server tells a process unasked. Called in whatever thread hears it; none of it waits."""

    def offered(self, label: str) -> None:
        """The lock was offered to this waiter: it takes it up by asking again."""

    def look_again(self, label: str, seconds: float) -> None:
        """The lock was offered to somebody before this waiter; it may be free after so many seconds."""

    def taken_away(self, label: str, fence: int, reason: str) -> None:
        """What was granted or offered to it with this fence was taken from it. It may have been granted it anew."""

    def remade(self) -> None:
        """The connection that brings messages was made anew: some may have been missed."""


class LeaseBackend(ABC):
    """One server. An operation is tried again within its deadline where that helps. It raises ``NoAnswer`` when the
    deadline has passed, ``BackendUnavailable`` when the server cannot be asked. What was asked later by this process is
    served later."""

    scheme: str
    messages: Messages
    """Set before anything is asked."""

    @property
    @abstractmethod
    def server(self) -> Hashable:
        """See ``Engine.server``."""

    @property
    @abstractmethod
    def ready(self) -> bool: ...

    @abstractmethod
    def open(self, deadline: Deadline, new_wakeup: Callable[[], Wakeup]) -> Flow[None]: ...

    @abstractmethod
    def take(self, wish: Wish, deadline: Deadline) -> Flow[Answer]:
        """Takes a lock that is free, takes up what was offered, or stands in the queue."""

    @abstractmethod
    def release(self, name: str, token: str, deadline: Deadline) -> Flow[Released]:
        """Ends whatever the token has there: the lock, an offer, or a place in the queue. Idempotent."""

    @abstractmethod
    def extend(self, leases: Sequence[tuple[str, str, float]], deadline: Deadline) -> Flow[list[bool | None]]:
        """For each (name, token, ttl): sets what remains to ``ttl``. Whether it was the token's still; None where the
        server could not say, though it could for others."""

    @abstractmethod
    def detach(self, name: str, token: str, ttl: float, deadline: Deadline) -> Flow[bool]:
        """Like ``extend`` for one; from now on nobody is in charge of it, and operators see that."""

    @abstractmethod
    def rotate(self, old: str, wish: Wish, deadline: Deadline) -> Flow[int | None]:
        """Gives a lock that is held by token ``old`` to the wish's token. Its fence, which may have grown; None if the
        old token holds nothing. The process that held it is told. The owner stays the one that took the lock."""

    @abstractmethod
    def holder(self, name: str, deadline: Deadline) -> Flow[Holder | None]: ...

    @abstractmethod
    def holders(self, deadline: Deadline) -> Flow[list[Holder]]: ...

    @abstractmethod
    def evict(self, name: str, deadline: Deadline) -> Flow[bool]:
        """Takes the lock from whoever holds it, whose process is told. False if nobody does."""

    @abstractmethod
    def close(self) -> None: ...

    def amid(self) -> bool:
        """Whether this very thread is at work inside the backend, where it cannot wait for an answer: the garbage
        collector may end an abandoned block, and so release its lock, in any thread."""
        return False
