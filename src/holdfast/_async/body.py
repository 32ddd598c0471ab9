"""The task that is inside a block: cancelled once when the lock is lost, the way ``asyncio.timeout`` does it."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from ..errors import InvalidOption, LockLost
from ..owner import running_loop
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
        owner = ticket.owner
        assert owner is not None
        self._loop = owner.loop or asyncio.get_running_loop()
        self._task = owner.task or _no_task
        task = self._task()
        self._before = task.cancelling() if task is not None else 0
        self._cancelled = False
        self._ended = False
        ticket.tell_when_lost(self)

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
        task = self._task()
        if not self._cancelled or task is None:
            return False
        # The block may be left by another task than the one that was cancelled; what ends that one is not ours.
        loop = running_loop()
        here = loop is not None and asyncio.current_task(loop) is task
        return task.uncancel() <= self._before and here

    def __call__(self) -> None:
        """The lock was lost, says some thread."""
        try:
            self._loop.call_soon_threadsafe(self._lost_in_loop)
        except RuntimeError:
            pass  # the loop is closed, and the body with it

    def _lost_in_loop(self) -> None:
        task = self._task()
        if not self._ended and task is not None:
            self._cancelled = task.cancel(f"lock {self._ticket.key} was lost")
        if self._on_lost is not None:
            task = self._loop.create_task(_call(self._on_lost, self._held))
            _callbacks.add(task)
            task.add_done_callback(_callbacks.discard)


def _no_task() -> None:
    return None


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
    if not callable(function):
        raise InvalidOption(f"exclusive: {function!r} cannot be called; put @classmethod above @exclusive")
    # Either will do: an async wrapper of a plain function, and a plain wrapper that returns the coroutine.
    if not inspect.iscoroutinefunction(function) and not inspect.iscoroutinefunction(inspect.unwrap(function)):
        raise InvalidOption(f"exclusive: {function!r} is not an async function; use Locks for plain functions")
