"""What a handler gets: the action, the run, a key for effects outside, and whether the run is still its own."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from contextvars import copy_context
from typing import Any, Final, TypeVar

from ..errors import LockLost
from .actions import ScheduledAction, ScheduledRun

T = TypeVar("T")

_log = logging.getLogger("holdfast.scheduler")

FIRST_WARNING: Final = 10.0
"""Seconds for a thread to end that was told to; then it is warned of, less and less often."""
LONGEST_SILENCE: Final = 600.0


class ClaimLost(LockLost):
    """The run is not this instance's any more; another may be at it."""


class Execution:
    """One attempt at a run, as its handler sees it. Its methods may be called from any thread."""

    def __init__(self, action: ScheduledAction, run: ScheduledRun) -> None:
        self.action = action
        self.run = run
        self._why: str | None = None
        self._told = threading.Event()
        self._lost = False
        self.abandoned = False
        """The instance ends and waits for nothing any more."""

    @property
    def idempotency_key(self) -> str:
        """The same for every attempt at this occurrence."""
        return self.run.idempotency_key

    @property
    def lost(self) -> bool:
        """Whether the claim was lost: another instance may have been given the run."""
        return self._lost

    @property
    def stopping(self) -> bool:
        """Whether the handler is to end: its claim was lost, its time is over, or the instance shuts down.

        An async handler is cancelled as well. One in a thread cannot be, and should look here now and then.
        """
        return self._told.is_set()

    def check(self) -> None:
        """Raises if the handler is to end."""
        if self._lost:
            raise ClaimLost(f"run {self.run.id} of action {self.action.id}: {self._why}")
        if self.stopping:
            raise asyncio.CancelledError(self._why)

    def tell(self, why: str, *, lost: bool = False) -> None:
        if lost:
            self._lost = True
        if not self.stopping or lost:
            self._why = why
        self._told.set()

    async def in_thread(self, function: Callable[..., T], /, *arguments: Any, **named: Any) -> T:
        """Calls ``function`` in a thread of its own, and does not return before that thread is done with it.

        A thread cannot be stopped. So whoever cancels this waits, and the run keeps its lease until the work has really
        ended; then what came of it counts, and ``stopping`` says that it was to end. The thread does not keep the
        interpreter from ending.
        """
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        context = copy_context()

        def settle(set_outcome: Callable[[Any], None], outcome: Any) -> None:
            if not done.done():
                set_outcome(outcome)

        def work() -> None:
            try:
                outcome: tuple[Callable[[Any], None], Any] = (
                    done.set_result, context.run(function, *arguments, **named),
                )  # fmt: skip
            except BaseException as error:
                outcome = (done.set_exception, _raisable(error))
            try:
                loop.call_soon_threadsafe(settle, *outcome)
            except RuntimeError:
                pass  # the loop is closed: nobody waits any more

        threading.Thread(target=work, name=f"holdfast-run-{self.run.id}", daemon=True).start()
        try:
            return await asyncio.shield(done)
        except asyncio.CancelledError:
            patience = FIRST_WARNING
            while not done.done():
                self.tell("it was cancelled")
                try:
                    await asyncio.wait([done], timeout=patience)
                except asyncio.CancelledError:
                    if self.abandoned:
                        raise
                else:
                    if not done.done():
                        self._warn()
                        patience = min(2 * patience, LONGEST_SILENCE)
            return done.result()

    def _warn(self) -> None:
        # Nothing but this tells an operator why the run stays unfinished, and its action with it.
        _log.warning(
            "action=thread_goes_on run=%s action_id=%s: told to end (%s), it has not; a thread cannot be stopped",
            self.run.id,
            self.action.id,
            self._why,
        )


def _raisable(error: BaseException) -> BaseException:
    # A future refuses StopIteration; SystemExit would end the loop, and not just the task that it came from.
    plain = isinstance(error, Exception | asyncio.CancelledError) and not isinstance(error, StopIteration)
    return error if plain else RuntimeError(f"{type(error).__name__}: {error}")
