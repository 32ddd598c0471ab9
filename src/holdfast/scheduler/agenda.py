"""What users do with actions: add, look at, change, pause, resume, trigger, remove. Any instance, started or not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final, TypeVar

from ..errors import LockError
from .actions import CHANGEABLE, ScheduledAction, ScheduledRun
from .attempt import Handler
from .checks import InvalidField, checked, checked_json, checked_text
from .planning import scheduled_anew
from .store import Store

T = TypeVar("T")

_WHEN: Final = frozenset(
    ("schedule_type", "cron_expression", "timezone", "interval_seconds", "run_at", "start_at", "end_at")
)
"""Fields from which the next occurrence follows."""

_PAGE: Final = 1000


class NoSuchAction(LockError, LookupError):
    """There is no action of this id."""


class NotNow(LockError):
    """The action is paused, or has run as often as it may."""


class Agenda:
    def __init__(self, store: Store, dispatchers: Mapping[str, Handler]) -> None:
        self._store = store
        self._dispatchers = dispatchers

    async def add(self, action: ScheduledAction) -> ScheduledAction:
        """Stores it; every instance hears of it. ``ValueError`` if a field cannot be used."""
        if action.status == "finished":
            raise InvalidField("status", "an action begins active or paused")
        now = await self._store.now()
        made = replace(
            checked(action, now, self._dispatchers), id=None, execution_count=0, last_run_at=None, created_at=now,
            updated_at=now, name=action.name or action.action_type,
        )  # fmt: skip
        return await self._store.add(made if action.status == "paused" else scheduled_anew(made, now))

    async def get(self, action_id: int) -> ScheduledAction:
        return _found(action_id, await self._store.get(_id(action_id)))

    async def actions(
        self, *, after: int = 0, limit: int = 100, status: str | None = None
    ) -> Sequence[ScheduledAction]:
        """In the order of their ids, from the one after ``after``."""
        return await self._store.actions(after=after, limit=min(limit, _PAGE), status=status)

    async def update(self, action_id: int, **changes: Any) -> ScheduledAction:
        """Changes these fields. If its schedule is among them, it goes on from now."""
        for name in changes:
            if name not in CHANGEABLE:
                raise InvalidField(name, "cannot be changed")

        def change(before: ScheduledAction, now: datetime) -> ScheduledAction:
            after = replace(before, **changes, updated_at=now)
            if not (_WHEN | {"max_executions"}) & changes.keys() or after.status == "paused":
                return checked(after, now, self._dispatchers)
            # Also one that had finished: it is checked as what it becomes.
            return scheduled_anew(checked(replace(after, status="active"), now, self._dispatchers), now)

        return _found(action_id, await self._store.change(_id(action_id), change))

    async def pause(self, action_id: int) -> ScheduledAction:
        """No new run begins, and no retry; what runs goes on."""

        def change(before: ScheduledAction, now: datetime) -> ScheduledAction:
            if before.status == "finished":
                return before
            return replace(before, status="paused", next_occurrence=None, next_run_at=None, updated_at=now)

        return _found(action_id, await self._store.change(_id(action_id), change))

    async def resume(self, action_id: int) -> ScheduledAction:
        """Goes on from now. What would have been while it was paused is not made up for."""

        def change(before: ScheduledAction, now: datetime) -> ScheduledAction:
            return before if before.status != "paused" else replace(scheduled_anew(before, now), updated_at=now)

        return _found(action_id, await self._store.change(_id(action_id), change))

    async def remove(self, action_id: int) -> None:
        """With its runs. A run that is under way is told that it has lost its claim."""
        if not await self._store.remove(_id(action_id)):
            raise NoSuchAction(f"there is no action {action_id}")

    async def trigger(self, action_id: int, payload: Any = None) -> ScheduledRun:
        """A run now, by whichever instance takes it up; ``skipped``, if the last has not ended and may not overlap."""
        checked_json("payload", payload)
        return _found(action_id, await self._store.trigger(_id(action_id), payload, _check_may_run))

    async def fire(self, event: str, payload: Any = None) -> Sequence[ScheduledRun]:
        """A run of every active action that waits for this event, from its start to its end.

        By whichever instance takes it up; ``skipped`` as in ``trigger``.
        """
        if not event:
            raise InvalidField("event", "give its name")
        checked_text("event", event)
        checked_json("payload", payload)
        return await self._store.fire(event, payload)

    async def runs(self, action_id: int, *, before: int | None = None, limit: int = 100) -> Sequence[ScheduledRun]:
        """The newest first; from the one before ``before``, a run's id."""
        await self.get(action_id)
        return await self._store.runs(action_id, before=before, limit=min(limit, _PAGE))


def _check_may_run(action: ScheduledAction) -> None:
    if action.status == "paused":
        raise NotNow(f"action {action.id} is paused: resume it first")
    if action.max_executions is not None and action.execution_count >= action.max_executions:
        raise NotNow(f"action {action.id} has run {action.max_executions} times, as often as it may")


def _id(action_id: int) -> int:
    if not isinstance(action_id, int) or not 0 < action_id < 2**31:
        raise NoSuchAction(f"there is no action {action_id}")
    return action_id


def _found(action_id: int, found: T | None) -> T:
    if found is None:
        raise NoSuchAction(f"there is no action {action_id}")
    return found
