"""One caller's claim on one key, from the first line of the wait to the last of the release.

All state of a lock is here, and none on a client or a lock object. The ticket exists *before* anything is acquired and
is told of a grant at the moment the grant is made, so that an interruption between the two (Ctrl-C, a cancelled task)
finds out what has to be given back.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from math import inf
from threading import RLock
from typing import TYPE_CHECKING, Any, Final

from . import fork
from .deadline import Deadline
from .errors import LockLost, NotHeld
from .keys import Key
from .owner import Owner

if TYPE_CHECKING:
    from .flow import Wakeup


class State:
    """What has become of a ticket. Plain strings: they are compared a dozen times in every hold."""

    WAITING: Final = "waiting"
    HELD: Final = "held"
    LOST: Final = "lost"
    RELEASED: Final = "released"
    DETACHED: Final = "detached"


class Ticket:
    """See the module. Engines read ``key lock wait deadline ttl note owner_text``, call ``granted`` and ``lose``."""

    __slots__ = (
        "_on_lost",
        "_process",
        "deadline",
        "engine_state",
        "expires_at",
        "fence",
        "key",
        "lock",
        "new_wakeup",
        "note",
        "owner",
        "owner_text",
        "proceeds",
        "protected",
        "reason",
        "server",
        "since",
        "state",
        "ttl",
        "wait",
        "waited",
        "wakeup",
        "wire",
    )

    def __init__(
        self,
        key: Key,
        wire: Hashable,
        new_wakeup: Callable[[], Wakeup],
        wait: float | None = None,
        ttl: float | None = None,
        note: str | None = None,
        owner_text: str | None = None,
        proceeds: bool = False,
    ) -> None:
        self.key = key
        self.server: Hashable = None
        """Where the lock lives: equal for all clients of one server."""
        self.wire = wire
        """What the engine calls the key. Two keys with one wire key are one lock."""
        self.lock: Hashable = None
        """The lock itself: the wire key on its server."""
        self.wait = wait
        self.waited = False
        """Whether it has stood in a queue, where the engine tells."""
        self.ttl = ttl
        self.note = note
        self.owner_text = owner_text
        """The owner that the caller chose, if any: a lock that this owner holds already is given to it anew."""
        self.proceeds = proceeds
        """Whether the block is to run also when the engine is unavailable."""
        self.protected = True
        """False if it does run so: there is no lock behind this ticket."""
        self.new_wakeup = new_wakeup
        self.wakeup: Wakeup | None = None
        self.owner: Owner | None = None
        self.deadline = _NEVER
        self.state: str = State.WAITING
        self.fence: int | None = None
        self.expires_at = inf
        """When the lease ends on this process's monotonic clock, counted from before it was asked for."""
        self.since = 0.0
        self.reason = ""
        self.engine_state: Any = None
        """The engine's own: a file descriptor, a connection, a token."""
        self._on_lost: Callable[[], None] | None = None
        self._process = fork.process

    def at(self, server: Hashable) -> None:
        """Says where the lock lives, which an engine may know only once it is connected."""
        self.server = server
        self.lock = (server, self.wire)

    @property
    def waits(self) -> bool:
        """Whether this is more than a single try."""
        return self.wait != 0

    @property
    def held(self) -> bool:
        return self.state is State.HELD and self._process is fork.process

    @property
    def lost(self) -> bool:
        if self.expires_at != inf and self.held and self.expires_at <= time.monotonic():
            self.lose("its lease ran out before it could be renewed")
        return self.state is State.LOST

    def arm(self) -> Wakeup:
        """Prepares to be woken. Called by whoever puts the ticket into a queue, before anyone can find it there."""
        self.wakeup = self.new_wakeup()
        return self.wakeup

    def granted(self, *, fence: int | None = None, engine_state: Any = None) -> None:
        """The lock is this ticket's from now on."""
        self.fence = fence
        self.engine_state = engine_state
        self.since = time.time()
        self.state = State.HELD

    def unprotected(self) -> None:
        """The block runs without a lock, by its own choice. Nobody else is kept out."""
        self.protected = False
        self.granted()

    def lose(self, reason: str) -> bool:
        """Marks a held lock as lost and tells the holder. True for the one caller that made it so."""
        if not self.mark_lost(reason):
            return False
        self.tell_lost()
        return True

    def mark_lost(self, reason: str) -> bool:
        """The first half of ``lose``: runs nobody else's code, so it may be called under a mutex."""
        return self._leave_held(State.LOST, reason)

    def tell_lost(self) -> None:
        """The second half of ``lose``: calls the holder's callback, which may take its time."""
        with _transitions:
            callback, self._on_lost = self._on_lost, None
        if callback is not None:
            callback()

    def tell_when_lost(self, callback: Callable[[], None]) -> None:
        """Has ``callback`` called once if the lock is lost, at once if it is lost already. It must not raise."""
        with _transitions:  # or a loss in this moment would be told twice, and its task be cancelled twice
            lost = self.state is State.LOST
            if not lost:
                self._on_lost = callback
        if lost:
            callback()

    def settle(self) -> None:
        """Notes a grant with its owner; raises if the lock was lost before the owner could come to know of it."""
        with _transitions:
            if self.held and self.owner is not None and self.protected:
                self.owner.held[self.lock] = self
        if not self.held:
            self.check()

    def end(self, state: str) -> None:
        """Ends a held lock by the holder's own will; raises when there is none to end."""
        if not self._leave_held(state, ""):
            self.check()
        self._on_lost = None  # it leads back here: without the circle, all of it is freed at once

    def check(self) -> None:
        """Raises unless the lock is held by this very process and handle."""
        if self._process is not fork.process:
            raise NotHeld(
                f"{self.key} is held by the process that forked this one; take a lock of your own", key=self.key
            )
        if self.lost:
            raise LockLost(f"{self.key} was lost: {self.reason}", key=self.key)
        if self.state is not State.HELD:
            raise NotHeld(f"{self.key} is not held: this handle was {self.state} before", key=self.key)

    def _leave_held(self, state: str, reason: str) -> bool:
        if self._process is not fork.process:
            return False
        with _transitions:
            if self.state is not State.HELD:
                return False
            # Under the mutex: the owner may take the lock anew at once, and that entry must stay. Before the state is
            # changed: should Ctrl-C strike here, it is still to be ended.
            owner = self.owner
            if owner is not None and owner.held.get(self.lock) is self:
                del owner.held[self.lock]
            self.state = state
            self.reason = reason
        return True


_NEVER = Deadline()
# Re-entrant: the garbage collector may end an abandoned block in a thread that is in here.
_transitions = RLock()


def _new_mutex() -> None:
    global _transitions
    _transitions = RLock()


fork.in_child(_new_mutex)
