"""One caller's claim on one lease."""

from __future__ import annotations

from math import inf
from secrets import token_hex
from time import monotonic
from typing import TYPE_CHECKING, Final

from ...ticket import State, Ticket
from ..base import describe
from .backend import Wish

if TYPE_CHECKING:
    from .engine import LeaseEngine


NOT_OURS: Final = "the server says that it ran out, or is another's"


def new_token() -> str:
    text = token_hex(24)  # one call to the kernel
    return f"{text[:16]}-{text[16:]}"


def label_of(token: str) -> str:
    """The part of a token that is no secret, and as good as unique."""
    return token.partition("-")[0]


class Lease:
    """What the engine keeps of a ticket: waiting, or held and to be renewed. Guarded by the house's mutex."""

    __slots__ = (
        "_changes",
        "_least",
        "ask_at",
        "engine",
        "label",
        "lost_fence",
        "lost_reason",
        "name",
        "ticket",
        "token",
        "ttl",
        "unanswered",
    )

    def __init__(self, engine: LeaseEngine, ticket: Ticket) -> None:
        assert ticket.ttl is not None
        self.engine = engine
        self.ticket = ticket
        self.name = ticket.key.text
        self.token = new_token()
        self.label = label_of(self.token)
        self.ttl = ticket.ttl
        self.ask_at = 0.0
        """When a waiter asks the server again."""
        self.unanswered = False
        """Whether it was asked for, and no answer has come: it may be held, or in the queue, or not."""
        self.lost_fence = 0
        """Grants up to this one were taken away, if that was told before the grant was."""
        self.lost_reason = ""
        self._changes = 0
        self._least = inf

    def wish(self) -> Wish:
        ticket = self.ticket
        return Wish(self.name, self.token, self.ttl, ticket.waits, ticket.owner_text, describe(ticket), ticket.note)

    @property
    def held(self) -> bool:
        return self.ticket.state is State.HELD

    @property
    def renew_at(self) -> float:
        """When a third of the lease is over."""
        return self.ticket.expires_at - self.ttl * 2 / 3

    # What remains of it is changed by the holder and by the attendant, maybe at once, and the server may serve them in
    # either order. Then the shorter time is believed.

    @property
    def changing(self) -> bool:
        return self._changes > 0

    def change(self, ttl: float) -> float:
        """A request to set what remains to ``ttl`` is about to be sent. Returns when the lease would then end."""
        end = monotonic() + ttl
        self._least = min(self._least, end) if self._changes else end
        self._changes += 1
        return end

    def changed(self, end: float, *, known: bool) -> None:
        """It was answered; or, if that is not ``known``, it may or may not have been served."""
        self._changes -= 1
        ticket = self.ticket
        ticket.expires_at = self._least if known else min(ticket.expires_at, end)
