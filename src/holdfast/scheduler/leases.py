"""The runs that this instance has: renewed together, and told when they are lost.

A lease ends on the database's clock. Its holder counts by its own, from before the request was sent: so it stops before
another can begin, even if the database does not answer any more.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any, NamedTuple

from .counts import Counts
from .execution import Execution
from .store import Attempt, Claim, Claimer, Store


class _Held(NamedTuple):
    execution: Execution
    task: asyncio.Task[Any]


class Leases:
    def __init__(self, store: Store, claimer: Claimer, counts: Counts) -> None:
        self._store = store
        self._claimer = claimer
        self._held: dict[Attempt, _Held] = {}
        self._timers: dict[Attempt, asyncio.TimerHandle] = {}
        self._keeper: asyncio.Task[None] | None = None
        self._counts = counts

    @property
    def usable(self) -> float:
        """Seconds of a lease in which a run may go on. In the rest its handler can stop before another begins."""
        return 0.9 * self._claimer.lease

    def __len__(self) -> int:
        return len(self._held)

    @property
    def action_ids(self) -> set[int]:
        return {held.execution.run.action_id for held in self._held.values()}

    @property
    def executions(self) -> list[Execution]:
        return [held.execution for held in self._held.values()]

    def take(self, claim: Claim, execution: Execution, task: asyncio.Task[Any], asked_at: float) -> None:
        """``task`` is what is cancelled on loss. ``asked_at``: on the monotonic clock, before the claim was sent."""
        attempt = Attempt(claim.run.id, claim.run.attempt)
        self._held[attempt] = _Held(execution, task)
        self._set_timer(attempt, asked_at)
        if self._keeper is None or self._keeper.done():
            self._keeper = asyncio.create_task(self._keep())

    def cancel_all(self) -> None:
        for held in self._held.values():
            held.task.cancel()

    def drop(self, attempt: Attempt) -> None:
        self._held.pop(attempt, None)
        timer = self._timers.pop(attempt, None)
        if timer is not None:
            timer.cancel()

    async def _keep(self) -> None:
        """Renews what is held, at a third of the lease, for as long as anything is."""
        while self._held:
            await asyncio.sleep(self._claimer.lease / 3)
            await self.renew()

    async def renew(self) -> None:
        ours = [attempt for attempt, held in self._held.items() if not held.execution.lost]
        if not ours:
            return
        asked_at = time.monotonic()
        try:
            renewed = await self._store.renew(self._claimer, ours)
        except Exception as error:
            # Not lost yet: there is time to try again before the lease ends. The timers see to it if there is not.
            self._counts.trouble("renew", error)
            return
        self._counts.answered()
        for attempt in ours:
            if attempt in renewed:
                self._set_timer(attempt, asked_at)
            else:
                self._lose(attempt, "it ended, was given to another instance, or its action was deleted")

    def _set_timer(self, attempt: Attempt, asked_at: float) -> None:
        if attempt not in self._held:
            return  # it ended while it was being renewed
        timer = self._timers.pop(attempt, None)
        if timer is not None:
            timer.cancel()
        loop = asyncio.get_running_loop()
        left = asked_at + self.usable - time.monotonic()
        self._timers[attempt] = loop.call_later(left, self._lose, attempt, "its lease could not be renewed in time")

    def _lose(self, attempt: Attempt, why: str) -> None:
        held = self._held.get(attempt)
        if held is None or held.execution.lost or held.task.done():
            return  # what has ended is being reported: its fence decides
        self._counts.lost(held.execution.run, why)
        held.execution.tell(why, lost=True)
        held.task.cancel()
