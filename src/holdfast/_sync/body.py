"""The thread inside a block. It is not interrupted: it learns of a loss by ``check()``, the callback, and at exit."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..errors import InvalidOption, LockLost
from ..ticket import Ticket

if TYPE_CHECKING:
    from .held import Held

OnLost = Callable[["Held"], None]

BLOCKS = True
"""Whether a wait stops the thread, and with it any event loop that runs there."""


class Body:
    """Watches over the block of one held lock."""

    __slots__ = ("_held", "_on_lost", "_ticket")

    def __init__(self, ticket: Ticket, held: Held, on_lost: OnLost | None) -> None:
        self._ticket = ticket
        self._held = held
        self._on_lost = on_lost
        if on_lost is not None:
            ticket.tell_when_lost(self)

    def end(self, error: BaseException | None) -> BaseException | None:
        """What the block ends with: the body's own error, ``LockLost``, or nothing."""
        if not self._ticket.lost:
            return error
        lost = LockLost(f"{self._ticket.key} was lost: {self._ticket.reason}", key=self._ticket.key)
        if error is None:
            return lost
        error.add_note(f"(while in this block, {lost})")
        return error

    def __call__(self) -> None:
        """The lock was lost, says some thread."""
        assert self._on_lost is not None
        try:
            self._on_lost(self._held)
        except Exception:
            import logging

            logging.getLogger("holdfast").exception("action=on_lost_failed key=%s", self._held.key)


def check_function(function: Callable[..., Any]) -> None:
    """Refuses to wrap what would outlive the lock that is held around the call."""
    import inspect

    if not callable(function):
        raise InvalidOption(f"exclusive: {function!r} cannot be called; put @classmethod above @exclusive")
    inner = inspect.unwrap(function)
    if inspect.iscoroutinefunction(inner) or inspect.isasyncgenfunction(inner):
        raise InvalidOption(f"exclusive: {function!r} is async; use AsyncLocks for it")
    if inspect.isgeneratorfunction(inner):
        raise InvalidOption(f"exclusive: {function!r} is a generator; its body would run after the lock is released")
