"""The task that is inside a block: cancelled once when the lock is lost, the way ``asyncio.timeout`` does it."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from ..errors import InvalidOption, LockLost
from ..ticket import Ticket

if TYPE_CHECKING:
    from .held import AsyncHeld

OnLost = Callable[["AsyncHeld"], "Awaitable[None] | None"]

BLOCKS = False
"""Whether a wait stops the thread, and with it any event loop that runs there."""

_callbacks: set[asyncio.Task[None]] = set()  # the loop itself holds tasks weakly


class Body:
    """Watches over the block of one held lock."""

    __slots__ = ("_before", "_cancelled", "_ended", "_held", "_loop", "_on_lost", "_task", "_ticket")

    def __init__(self, ticket: Ticket, held: AsyncHeld, on_lost: OnLost | None) -> None:
        self._ticket = ticket
        self._held = held
        self._on_lost = on_lost
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._before = self._task.cancelling() if self._task is not None else 0
        self._cancelled = False
        self._ended = False
        ticket.tell_when_lost(self._lost_somewhere)

    def end(self, error: BaseException | None) -> BaseException | None:
        """What the block ends with: the body's own error, ``LockLost``, or nothing."""
        self._ended = True
        ours = self._withdraw_cancellation() and isinstance(error, asyncio.CancelledError)
        if not self._ticket.lost:
            return error
        lost = LockLost(f"{self._ticket.key} was lost: {self._ticket.reason}", key=self._ticket.key)
        if error is None or ours:
            lost.__cause__ = error
            return lost
        error.add_note(f"(while in this block, {lost})")
        return error

    def _withdraw_cancellation(self) -> bool:
        """Takes back the cancellation that a loss caused. True if nobody else asked for one: an outside one wins."""
        if not self._cancelled or self._task is None:
            return False
        return self._task.uncancel() <= self._before

    def _lost_somewhere(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._lost_in_loop)
        except RuntimeError:
            pass  # the loop is closed, and the body with it

    def _lost_in_loop(self) -> None:
        if not self._ended and self._task is not None:
            self._cancelled = True
            self._task.cancel(f"lock {self._ticket.key} was lost")
        if self._on_lost is not None:
            task = self._loop.create_task(_call(self._on_lost, self._held))
            _callbacks.add(task)
            task.add_done_callback(_callbacks.discard)


async def _call(on_lost: OnLost, held: AsyncHeld) -> None:
    try:
        outcome = on_lost(held)
        if inspect.isawaitable(outcome):
            await outcome
    except Exception:
        import logging

        logging.getLogger("holdfast").exception("action=on_lost_failed key=%s", held.key)


def check_function(function: Callable[..., Any]) -> None:
    """Refuses to wrap what would outlive the lock that is held around the call."""
    if not inspect.iscoroutinefunction(inspect.unwrap(function)):
        raise InvalidOption(f"exclusive: {function!r} is not an async function; use Locks for plain functions")
