"""What a scheduler asks of the place where its actions live. Two keep it: PostgreSQL, and this process's memory."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from typing import Any, NamedTuple, Protocol

from ..errors import BackendUnavailable
from .actions import RunState, ScheduledAction, ScheduledRun


class DataRefused(BackendUnavailable):
    """The store is there, and does not take what it was given."""


class Attempt(NamedTuple):
    """Whose word it is that is given on a run: the fence."""

    run_id: int
    attempt: int


class Claim(NamedTuple):
    """A run that is this instance's now, for one attempt and as long as its lease is renewed."""

    action: ScheduledAction
    run: ScheduledRun
    due: datetime
    """When it could have begun: its occurrence and jitter, or the moment of its trigger."""


class Settled(NamedTuple):
    """A run that was ended without an attempt: skipped, or failed since its instance was gone."""

    action_type: str
    state: RunState


class Taken(NamedTuple):
    """What came of an attempt to claim."""

    claims: Sequence[Claim] = ()
    settled: Sequence[Settled] = ()


class Ending(NamedTuple):
    """How an attempt ended."""

    of: Attempt
    state: RunState
    duration: float
    error: str | None = None
    result: str | None = None
    """As JSON."""
    retry_in: float | None = None
    """Seconds after which it is tried again; None if that was its last attempt."""
    handed_back: bool = False
    """The instance ends, and another is to have it: this attempt does not count."""


class Look(NamedTuple):
    """What an idle instance sees."""

    now: datetime
    """By the clock that decides."""
    due: datetime | None
    """When the next thing is due: an action, a retry, or a lease that nobody has renewed."""


class Claimer(NamedTuple):
    instance: str
    lease: float


class Store(Protocol):
    """Every method is one transaction. What goes wrong with the place is raised; nothing is claimed then."""

    async def open(self) -> None: ...

    async def close(self) -> None: ...

    async def listen(self, wake: Callable[[], None], on_trouble: Callable[[BaseException], None]) -> None:
        """Calls ``wake`` for every change that others announce, until it is cancelled."""
        ...

    @property
    def announces(self) -> bool:
        """Whether ``listen`` hears anything. If not, there is only looking."""
        ...

    # claims and their leases
    async def look(self) -> Look: ...

    async def try_lock(self, action_id: int) -> bool:
        """Whether the action's lock was free just now."""
        ...

    async def claim_due(self, claimer: Claimer, room: int) -> Taken:
        """Takes up what is due, at most ``room`` runs, and settles runs whose instance is gone."""
        ...

    async def claim_occurrence(self, claimer: Claimer, action: ScheduledAction) -> Taken:
        """Takes up the occurrence that ``action`` shows as its next, if nobody has; or, if it shows none, a new run."""
        ...

    async def renew(self, claimer: Claimer, attempts: Collection[Attempt]) -> set[Attempt]:
        """Those that are still ours."""
        ...

    async def finish(self, endings: Sequence[Ending]) -> set[Attempt]:
        """Those whose endings were taken. The others are not ours any more."""
        ...

    async def forget_runs(self, older_than: float) -> int:
        """Deletes some of the runs that ended so many seconds ago; how many."""
        ...

    # the catalogue
    async def now(self) -> datetime: ...

    async def add(self, action: ScheduledAction) -> ScheduledAction: ...

    async def get(self, action_id: int) -> ScheduledAction | None: ...

    async def actions(self, *, after: int, limit: int, status: str | None) -> Sequence[ScheduledAction]: ...

    async def change(self, action_id: int, change: Change) -> ScheduledAction | None:
        """Re-reads the action under its lock and stores what ``change`` makes of it."""
        ...

    async def remove(self, action_id: int) -> bool: ...

    async def trigger(self, action_id: int, payload: Any, check: Check) -> ScheduledRun | None:
        """A run that is due now; skipped, if the action does not allow it beside one that has not ended.

        ``check`` is called with the action under its lock, and may raise.
        """
        ...

    async def fire(self, event: str, payload: Any) -> Sequence[ScheduledRun]: ...

    async def runs(self, action_id: int, *, before: int | None, limit: int) -> Sequence[ScheduledRun]: ...


Change = Callable[[ScheduledAction, datetime], ScheduledAction]
Check = Callable[[ScheduledAction], None]
