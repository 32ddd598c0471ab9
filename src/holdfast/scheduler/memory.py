"""The single instance's store: this process's memory. Nothing outlives the process, and nobody else sees it.

No method waits, so each is one transaction. The lock is always free.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any
from uuid import uuid4

from .actions import RunState, ScheduledAction, ScheduledRun
from .planning import BUSY, MAX_RECOVERIES, counted, listens, plan_due, runs_when_executed
from .store import Attempt, Change, Check, Claim, Claimer, Ending, Look, Settled, Taken


def _utc_now() -> datetime:
    return datetime.now(UTC)


class MemoryStore:
    announces = True

    def __init__(self, clock: Callable[[], datetime] = _utc_now) -> None:
        self._clock = clock
        self._actions: dict[int, ScheduledAction] = {}
        self._runs: dict[int, ScheduledRun] = {}
        self._action_ids, self._run_ids = count(1), count(1)
        self._wake: Callable[[], None] = lambda: None

    async def open(self) -> None:
        pass

    async def close(self) -> None:
        pass

    async def listen(self, wake: Callable[[], None], on_trouble: Callable[[BaseException], None]) -> None:
        self._wake = wake
        try:
            await asyncio.Event().wait()
        finally:
            self._wake = lambda: None

    async def look(self) -> Look:
        moments = [action.next_run_at for action in self._actions.values() if action.status == "active"]
        for run in self._runs.values():
            if run.state == RunState.PENDING and self._actions[run.action_id].status != "paused":
                moments.append(run.due_at)
            elif run.state == RunState.RUNNING:
                moments.append(run.lease_until)
        return Look(self._clock(), min((moment for moment in moments if moment is not None), default=None))

    async def try_lock(self, action_id: int) -> bool:
        return True

    async def claim_due(self, claimer: Claimer, room: int) -> Taken:
        now = self._clock()
        settled = self._settle_lost(now)
        claims = self._claim_pending(claimer, room, now)
        due = [action for action in self._actions.values() if _is_due(action, now)]
        for action in sorted(due, key=lambda action: action.next_run_at or now)[: room - len(claims)]:
            started = self._start_due(claimer, action, now)
            claims += started.claims
            settled += started.settled
        return Taken(claims, settled)

    def _settle_lost(self, now: datetime) -> list[Settled]:
        settled = []
        for run in self._unfinished():
            if run.state == RunState.RUNNING and run.lease_until is not None and run.lease_until < now:
                run.lease_until, run.recoveries = None, run.recoveries + 1
                run.error = f"instance {run.instance} stopped renewing its lease in attempt {run.attempt}"
                action = self._actions[run.action_id]
                if action.recovery == "at_least_once" and run.recoveries <= MAX_RECOVERIES:
                    run.state, run.due_at = RunState.PENDING, now
                else:
                    run.state, run.finished_at = RunState.FAILED, now
                    settled.append(Settled(action.action_type, run.state))
        return settled

    def _claim_pending(self, claimer: Claimer, room: int, now: datetime) -> list[Claim]:
        claims: list[Claim] = []
        pending = [run for run in self._unfinished() if run.state == RunState.PENDING and (run.due_at or now) <= now]
        for run in sorted(pending, key=lambda run: run.due_at or now):
            action = self._actions[run.action_id]
            if len(claims) < room and action.status != "paused":
                due, run.due_at = run.due_at or now, None
                run.attempt += 1
                claims.append(self._claimed(claimer, action, run, now, due))
        return claims

    def _start_due(self, claimer: Claimer, action: ScheduledAction, now: datetime) -> Taken:
        assert action.id is not None and action.next_run_at is not None
        plan = plan_due(action, now, busy=self._busy(action))
        self._actions[action.id] = plan.after
        for moment, reason in plan.skipped:
            self._make_run(action, moment, "schedule", RunState.SKIPPED, error=reason, finished_at=now)
        settled = [Settled(action.action_type, RunState.SKIPPED)] * len(plan.skipped)
        if plan.start is None:
            return Taken((), settled)
        run = self._make_run(action, plan.start, "schedule", RunState.RUNNING, attempt=1)
        return Taken([self._claimed(claimer, plan.after, run, now, action.next_run_at)], settled)

    async def claim_occurrence(self, claimer: Claimer, action: ScheduledAction) -> Taken:
        if action.id is None or action.id not in self._actions:
            action = await self.add(action)
        assert action.id is not None
        now, known = self._clock(), self._actions[action.id]
        if known.next_occurrence != action.next_occurrence:
            return Taken()
        if known.next_occurrence is not None:
            return self._start_due(claimer, known, now) if _is_due(known, now) else Taken()
        if not runs_when_executed(known):
            return Taken()
        if self._busy(known):
            self._make_run(known, now, "manual", RunState.SKIPPED, error=BUSY, finished_at=now)
            return Taken((), [Settled(known.action_type, RunState.SKIPPED)])
        self._actions[action.id] = counted(known, now)
        run = self._make_run(known, now, "manual", RunState.RUNNING, attempt=1)
        return Taken([self._claimed(claimer, self._actions[action.id], run, now, now)])

    def _claimed(
        self, claimer: Claimer, action: ScheduledAction, run: ScheduledRun, now: datetime, due: datetime
    ) -> Claim:
        run.state, run.instance, run.started_at = RunState.RUNNING, claimer.instance, now
        run.lease_until = now + timedelta(seconds=claimer.lease)
        return Claim(replace(action), replace(run), due)

    async def renew(self, claimer: Claimer, attempts: Collection[Attempt]) -> set[Attempt]:
        ours = {attempt for attempt in attempts if self._is_at(attempt)}
        for run_id, _ in ours:
            self._runs[run_id].lease_until = self._clock() + timedelta(seconds=claimer.lease)
        return ours

    async def finish(self, endings: Sequence[Ending]) -> set[Attempt]:
        now, taken = self._clock(), set()
        for ending in endings:
            if not self._is_at(ending.of):
                continue
            taken.add(ending.of)
            run = self._runs[ending.of.run_id]
            run.lease_until, run.duration_seconds, run.error = None, ending.duration, ending.error
            run.result = None if ending.result is None else json.loads(ending.result)
            run.recoveries += ending.handed_back
            if ending.retry_in is None and not ending.handed_back:
                run.state, run.finished_at = ending.state, now
            else:
                run.state, run.due_at = RunState.PENDING, now + timedelta(seconds=ending.retry_in or 0)
        return taken

    async def forget_runs(self, older_than: float) -> int:
        until = self._clock() - timedelta(seconds=older_than)
        old = [run.id for run in self._runs.values() if run.finished_at is not None and run.finished_at < until]
        for run_id in old:
            del self._runs[run_id]
        return len(old)

    async def now(self) -> datetime:
        return self._clock()

    async def add(self, action: ScheduledAction) -> ScheduledAction:
        added = replace(action, id=action.id or next(self._action_ids))
        assert added.id is not None
        while added.id in self._actions:
            added.id = next(self._action_ids)
        self._actions[added.id] = added
        self._wake()
        return replace(added)

    async def get(self, action_id: int) -> ScheduledAction | None:
        action = self._actions.get(action_id)
        return action and replace(action)

    async def actions(self, *, after: int, limit: int, status: str | None) -> Sequence[ScheduledAction]:
        found = [self._actions[number] for number in sorted(self._actions) if number > after]
        return [replace(action) for action in found if status in (None, action.status)][:limit]

    async def change(self, action_id: int, change: Change) -> ScheduledAction | None:
        if action_id not in self._actions:
            return None
        self._actions[action_id] = change(self._actions[action_id], self._clock())
        self._wake()
        return replace(self._actions[action_id])

    async def remove(self, action_id: int) -> bool:
        self._runs = {run.id: run for run in self._runs.values() if run.action_id != action_id}
        return self._actions.pop(action_id, None) is not None

    async def trigger(self, action_id: int, payload: Any, check: Check) -> ScheduledRun | None:
        action = self._actions.get(action_id)
        if action is None:
            return None
        check(action)
        return self._make_pending(action, "manual", payload)

    async def fire(self, event: str, payload: Any) -> Sequence[ScheduledRun]:
        now = self._clock()
        waiting = [action for action in self._actions.values() if action.event == event and listens(action, now)]
        return [self._make_pending(action, "event", payload) for action in waiting]

    async def runs(self, action_id: int, *, before: int | None, limit: int) -> Sequence[ScheduledRun]:
        found = [run for run in self._runs.values() if run.action_id == action_id and (not before or run.id < before)]
        return [replace(run) for run in sorted(found, key=lambda run: -run.id)[:limit]]

    def _make_pending(self, action: ScheduledAction, trigger: Any, payload: Any) -> ScheduledRun:
        now = self._clock()
        if self._busy(action):
            run = self._make_run(action, now, trigger, RunState.SKIPPED, error=BUSY, finished_at=now)
        else:
            assert action.id is not None
            self._actions[action.id] = counted(action, now)
            run = self._make_run(action, now, trigger, RunState.PENDING, due_at=now, payload=payload)
            self._wake()
        return replace(run)

    def _make_run(
        self, action: ScheduledAction, moment: datetime, trigger: Any, state: RunState, **more: Any
    ) -> ScheduledRun:
        assert action.id is not None
        run = ScheduledRun(
            id=next(self._run_ids), action_id=action.id, scheduled_for=moment, trigger=trigger, state=state,
            idempotency_key=str(uuid4()), exclusive=not action.allow_concurrent, **more,
        )  # fmt: skip
        self._runs[run.id] = run
        return run

    def _unfinished(self) -> list[ScheduledRun]:
        return [run for run in self._runs.values() if not run.state.final]

    def _busy(self, action: ScheduledAction) -> bool:
        return not action.allow_concurrent and any(run.action_id == action.id for run in self._unfinished())

    def _is_at(self, attempt: Attempt) -> bool:
        run = self._runs.get(attempt.run_id)
        return run is not None and run.attempt == attempt.attempt and run.state == RunState.RUNNING


def _is_due(action: ScheduledAction, now: datetime) -> bool:
    return action.status == "active" and action.next_run_at is not None and action.next_run_at <= now
