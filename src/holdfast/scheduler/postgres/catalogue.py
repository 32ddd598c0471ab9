"""The actions themselves: kept, changed, triggered. Every change is made to the row as it is under its lock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Any

from sqlalchemy import delete, func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from ..actions import ScheduledAction, ScheduledRun, action_from, run_from
from ..planning import BUSY, counted, listens
from ..store import Change, Check
from .database import Database
from .tables import actions as ACTIONS
from .tables import runs as RUNS


class Catalogue:
    def __init__(self, database: Database, namespace: int) -> None:
        self._database = database
        self._namespace = namespace

    def _bound(self, **more: Any) -> dict[str, Any]:
        return {"namespace": self._namespace, **more}

    async def now(self) -> datetime:
        async with self._database.transaction() as connection:
            return await _now(connection)

    async def add(self, action: ScheduledAction) -> ScheduledAction:
        values = {name: value for name, value in asdict(action).items() if name != "id"}
        async with self._database.transaction() as connection:
            row = await connection.execute(insert(ACTIONS).values(**values, **self._bound()).returning(*ACTIONS.c))
            return action_from(dict(row.mappings().one()))

    async def get(self, action_id: int) -> ScheduledAction | None:
        async with self._database.transaction() as connection:
            return await self._action(connection, action_id)

    async def actions(self, *, after: int, limit: int, status: str | None) -> Sequence[ScheduledAction]:
        wanted = select(ACTIONS).where(ACTIONS.c.namespace == self._namespace, ACTIONS.c.id > after)
        if status is not None:
            wanted = wanted.where(ACTIONS.c.status == status)
        async with self._database.transaction() as connection:
            rows = await connection.execute(wanted.order_by(ACTIONS.c.id).limit(limit))
            return [action_from(dict(row)) for row in rows.mappings()]

    async def change(self, action_id: int, change: Change) -> ScheduledAction | None:
        async with self._database.transaction() as connection:
            before = await self._action(connection, action_id, locked=True)
            if before is None:
                return None
            return await self._store(connection, change(before, await _now(connection)))

    async def remove(self, action_id: int) -> bool:
        its_runs = select(RUNS.c.id).where(RUNS.c.action_id == action_id).order_by(RUNS.c.id)
        async with self._database.transaction() as connection:
            if await self._action(connection, action_id, locked=True) is None:
                return False
            # They go with it, in no order. Whoever renews or ends some of them locks them in the order of their ids.
            await connection.execute(its_runs.with_for_update())
            await connection.execute(delete(ACTIONS).where(*self._is(action_id)))
            return True

    async def trigger(self, action_id: int, payload: Any, check: Check) -> ScheduledRun | None:
        async with self._database.transaction() as connection:
            action = await self._action(connection, action_id, locked=True)
            if action is None:
                return None
            check(action)
            return await self._make_pending(connection, action, "manual", payload)

    async def fire(self, event: str, payload: Any) -> Sequence[ScheduledRun]:
        waiting = (
            select(ACTIONS)
            .where(
                ACTIONS.c.namespace == self._namespace,
                ACTIONS.c.event == event,
                ACTIONS.c.status == "active",
            )
            .order_by(ACTIONS.c.id)  # two who fire the same lock in the same order
            .with_for_update()
        )
        async with self._database.transaction() as connection:
            found = [action_from(dict(row)) for row in (await connection.execute(waiting)).mappings()]
            now = await _now(connection)
            return [
                await self._make_pending(connection, action, "event", payload)
                for action in found
                if listens(action, now)
            ]

    async def runs(self, action_id: int, *, before: int | None, limit: int) -> Sequence[ScheduledRun]:
        wanted = select(RUNS).where(RUNS.c.action_id == action_id, RUNS.c.namespace == self._namespace)
        if before is not None:
            wanted = wanted.where(RUNS.c.id < before)
        async with self._database.transaction() as connection:
            rows = await connection.execute(wanted.order_by(RUNS.c.id.desc()).limit(limit))
            return [run_from(dict(row)) for row in rows.mappings()]

    async def _make_pending(
        self, connection: AsyncConnection, action: ScheduledAction, trigger: str, payload: Any
    ) -> ScheduledRun:
        """A run that any instance takes up; skipped if the action is busy. The action's row is locked."""
        unfinished = select(RUNS.c.id).where(RUNS.c.action_id == action.id, RUNS.c.state.in_(("pending", "running")))
        busy = not action.allow_concurrent and (await connection.execute(unfinished.limit(1))).first() is not None
        moment = await _now(connection)
        values = {
            "action_id": action.id,
            "scheduled_for": moment,
            "trigger": trigger,
            "payload": payload,
            "idempotency_key": func.gen_random_uuid().cast(RUNS.c.idempotency_key.type),
            "exclusive": not action.allow_concurrent,
            "attempt": 0,
            "recoveries": 0,
            **(
                {"state": "skipped", "error": BUSY, "finished_at": moment}
                if busy
                else {"state": "pending", "due_at": moment}
            ),
        }
        row = await connection.execute(insert(RUNS).values(**values, **self._bound()).returning(*RUNS.c))
        if not busy:
            await self._store(connection, counted(action, moment))
        return run_from(dict(row.mappings().one()))

    async def _action(
        self, connection: AsyncConnection, action_id: int, *, locked: bool = False
    ) -> ScheduledAction | None:
        wanted = select(ACTIONS).where(*self._is(action_id))
        row = (await connection.execute(wanted.with_for_update() if locked else wanted)).mappings().first()
        return None if row is None else action_from(dict(row))

    async def _store(self, connection: AsyncConnection, action: ScheduledAction) -> ScheduledAction:
        assert action.id is not None
        values = {name: value for name, value in asdict(action).items() if name != "id"}
        row = await connection.execute(
            update(ACTIONS).where(*self._is(action.id)).values(**values).returning(*ACTIONS.c)
        )
        return action_from(dict(row.mappings().one()))

    def _is(self, action_id: int) -> tuple[Any, Any]:
        return ACTIONS.c.id == action_id, ACTIONS.c.namespace == self._namespace


async def _now(connection: AsyncConnection) -> datetime:
    moment = await connection.scalar(select(func.clock_timestamp()))
    assert isinstance(moment, datetime)
    return moment
