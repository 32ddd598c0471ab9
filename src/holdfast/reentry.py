"""Whether a wait may begin: judges re-entry, dead-locks that are certain, and lock order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import order
from .errors import WouldDeadlock
from .owner import Owner, holder_in_loop
from .ticket import Ticket

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop


def may_wait(
    ticket: Ticket, owner: Owner, stopped_loop: AbstractEventLoop | None, order_check: order.OrderCheck
) -> bool:
    """False for a try that finds its own lock. ``stopped_loop``: the event loop that the wait would stop."""
    own = owner.held.get(ticket.lock)
    if own is not None and own.held and not _taken_anew(ticket, own):
        if not ticket.waits:
            return False
        raise WouldDeadlock(f"{ticket.key} is held by this very {owner.name} already", key=ticket.key)
    if not ticket.waits:
        return True
    if owner.held and (others := list(owner.held.values())):  # a copy: another thread may evict
        if ticket.wait is None:
            raise WouldDeadlock(
                f"{ticket.key}: wait=None while {owner.name} holds {others[0].key}; a wait "
                "that holds other locks must have a limit: give wait= in seconds",
                key=ticket.key,
            )
        order.check(order_check, owner, ticket)
    if (
        stopped_loop is not None
        and (holder := holder_in_loop(stopped_loop, ticket.lock)) is not None
        and not _taken_anew(ticket, holder.held.get(ticket.lock))
    ):
        raise WouldDeadlock(
            f"{ticket.key} is held by {holder.name} of the event loop that this blocking call would stop; "
            "use AsyncLocks here",
            key=ticket.key,
        )
    return True


def _taken_anew(ticket: Ticket, own: Ticket | None) -> bool:
    """Whether the ticket would get the lock from ``own``, since both are of one owner that the caller chose."""
    return own is not None and ticket.owner_text is not None and ticket.owner_text == own.owner_text
