"""The queues of this process: one line for each lock that anyone here has, wants or waits for.

The server grants a session its own key a second time, so a key must never be asked for twice from here: only the line
asks, once at a time, however many wait in it. Lines are shared by everything in this process that reaches one database,
by whatever address.
"""

from __future__ import annotations

from collections import OrderedDict
from threading import RLock
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ... import fork
from ...keys import PgKey
from ...ticket import Ticket
from ..shared import Shared
from .connect import Identity

if TYPE_CHECKING:
    from .connection import LockConnection
    from .hub import Hub


class Form(NamedTuple):
    """The statements for one form of key."""

    attempt: bytes
    unlock: bytes
    wait: bytes


PAIR: Final = Form(b"try_pair", b"unlock_pair", b"wait_pair")
HASH: Final = Form(b"try_hash", b"unlock_hash", b"wait_hash")

HANDOVERS: Final = 8
"""How often in a row a lock may be passed on inside the process, so that other processes get their turn."""


_NOBODY: Final[OrderedDict[Ticket, Hub]] = OrderedDict()
"""Never added to: most lines have nobody waiting in them, and there may be many thousands."""


class Line:
    """One lock in this process: who has it, on which connection, and who waits."""

    __slots__ = (
        "asks",
        "connection",
        "fence",
        "form",
        "handovers",
        "holder",
        "key",
        "parameters",
        "taker",
        "waiting",
        "waits_on",
        "wanted",
    )

    def __init__(self, key: PgKey) -> None:
        self.key = key
        if key.classid is None:
            self.form = HASH
            self.parameters: tuple[bytes, ...] = (b"%d" % key.objid,)
        else:
            self.form = PAIR
            self.parameters = (b"%d" % key.classid, b"%d" % key.objid)
        self.holder: Ticket | None = None
        self.connection: LockConnection | None = None
        """Where the server's lock is, while it is held here."""
        self.taker: Ticket | None = None
        """The first of all, while its own thread asks the server. It is awake, and queues only if it has to wait."""
        self.waiting: OrderedDict[Ticket, Hub] = _NOBODY
        """Who waits, each with the hub of its client: a lock is held on a connection of its holder's own hub only."""
        self.handovers = 0
        self.fence: int | None = None
        """The number that came with the grant; those who get the lock from hand to hand count up from it."""
        self.wanted = False
        """Whether the server is being asked for it, in one way or another."""
        self.waits_on: LockConnection | None = None
        """The connection that stands in the server's queue for it."""
        self.asks: Hub | None = None
        """The hub that asks, or asked last."""

    def hand_to_next(self, hub: Hub) -> bool:
        """Grants the lock, which is held at the server, to the first waiter that can be woken.

        Not to one of another hub: it would lose the lock when this hub is closed.
        """
        while self.waiting and next(iter(self.waiting.values())) is hub:
            heir = next(iter(self.waiting))
            try:
                handed = self._hand_to(heir)
            except BaseException:  # Ctrl-C: the heir has its place to lose, and a second time does no harm
                self._hand_to(heir)
                raise
            if handed:
                return True
        self.holder = None
        return False

    def _hand_to(self, heir: Ticket) -> bool:
        # It cannot look at its state before the mutex is free again. Who has no wakeup is awake: a former taker.
        woken = heir.wakeup is None or heir.wakeup.wake()
        self.waiting.pop(heir, None)
        if woken:
            heir.granted(fence=None if self.fence is None else self.fence + self.handovers)
            heir.wakeup = None  # it leads to the task: one whose loop is closed now could never be collected
            self.holder = heir
            if not self.waiting:
                self.waiting = _NOBODY
        return woken

    def add(self, ticket: Ticket, hub: Hub) -> None:
        if self.waiting is _NOBODY:
            self.waiting = OrderedDict()
        self.waiting[ticket] = hub

    def queue_taker(self) -> None:
        """The taker did not get the lock at once: from now on it waits like the others, before them."""
        taker, self.taker = self.taker, None
        if taker is not None:
            assert self.asks is not None
            self.add(taker, self.asks)
            self.waiting.move_to_end(taker, last=False)


class Lines:
    """All lines of one database. ``mutex`` guards them, and the hubs that serve them."""

    def __init__(self) -> None:
        # Re-entrant only to know its owner, see Hub.release.
        self.mutex: Any = RLock()
        self.by_key: dict[PgKey, Line] = {}
        fork.in_child(self._start_afresh)

    def drop_if_unused(self, line: Line) -> None:
        """Under the mutex."""
        if line.holder is None and not line.waiting and not line.wanted and self.by_key.get(line.key) is line:
            del self.by_key[line.key]

    def _start_afresh(self) -> None:
        self.mutex = RLock()
        self.by_key = {}


_lines: Shared[Lines] = Shared()


def lines_of(identity: Identity) -> Lines:
    return _lines.take(identity, Lines)
