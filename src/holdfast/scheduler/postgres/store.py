"""Claims, leases and endings, each in one transaction of the database, by its clock.

Whoever makes a run *running* holds the action's advisory lock until the commit, and so does whoever settles a run that
was lost; whoever makes a run at all holds the action's row. Both are taken by trying or for a moment only.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, replace
from datetime import datetime
from typing import Any, Final

from sqlalchemy import TextClause, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from ...engines.postgres.statements import read_statements
from ..actions import RunState, ScheduledAction, ScheduledRun, action_from, run_from
from ..planning import BUSY, MAX_RECOVERIES, counted, plan_due, runs_when_executed
from ..store import Attempt, Claim, Claimer, Ending, Look, Settled, Taken
from .catalogue import Catalogue
from .database import Database
from .listener import listen
from .tables import actions, runs

STATEMENTS: Final = {name: text(sql.decode()) for name, sql in read_statements(__package__).items()}

_RUNS: Final = tuple(runs.c)


class PostgresStore(Catalogue):
    def __init__(self, database: Database, namespace: int) -> None:
        super().__init__(database, namespace)

    async def open(self) -> None:
        async with self._database.transaction() as connection:
            await connection.execute(select(actions.c.id).limit(0))
            await connection.execute(select(runs.c.id).limit(0))

    async def close(self) -> None:
        await self._database.close()

    @property
    def announces(self) -> bool:
        return self._database.conninfo is not None

    async def listen(self, wake: Callable[[], None], on_trouble: Callable[[BaseException], None]) -> None:
        assert self._database.conninfo is not None
        await listen(self._database.conninfo, str(self._namespace), wake, on_trouble)

    async def look(self) -> Look:
        async with self._database.transaction() as connection:
            row = (await connection.execute(STATEMENTS["look"], self._bound())).one()
            return Look(row.now, row.due)

    async def try_lock(self, action_id: int) -> bool:
        async with self._database.transaction() as connection:
            return await self._try_lock(connection, action_id)

    async def _try_lock(self, connection: AsyncConnection, action_id: int) -> bool:
        return bool(await connection.scalar(STATEMENTS["try_lock"], self._bound(action_id=action_id)))

    async def claim_due(self, claimer: Claimer, room: int) -> Taken:
        async with self._database.transaction() as connection:
            settled = await self._settle_lost(connection)
            claims = await self._claim_pending(connection, claimer, room)
            started = Taken()
            if len(claims) < room:
                started = await self._claim_due_actions(connection, claimer, room - len(claims))
        # Only what is committed is claimed.
        return Taken([*claims, *started.claims], [*settled, *started.settled])

    async def _settle_lost(self, connection: AsyncConnection) -> list[Settled]:
        lost = await self._ids(connection, "lock_lost_runs")
        if not lost:
            return []
        bound = {"ids": lost, "max_recoveries": MAX_RECOVERIES}
        changed = await connection.execute(STATEMENTS["settle_lost_runs"], bound)
        return [Settled(row.action_type, RunState.FAILED) for row in changed if row.state == "failed"]

    async def _claim_pending(self, connection: AsyncConnection, claimer: Claimer, room: int) -> list[Claim]:
        ids = await self._ids(connection, "lock_pending_runs", room=room)
        if not ids:
            return []
        taken = await self._changed_runs(connection, "take_pending_runs", ids=ids, **claimer._asdict())
        waiting = sorted(set(ids) - {run.id for run in taken})
        if waiting:
            await connection.execute(STATEMENTS["postpone_pending_runs"], {"ids": waiting})
        of = {action.id: action for action, _, _ in await self._read(connection, [run.action_id for run in taken])}
        return [Claim(of[run.action_id], run, run.scheduled_for) for run in taken]

    async def _claim_due_actions(self, connection: AsyncConnection, claimer: Claimer, room: int) -> Taken:
        ids = await self._ids(connection, "lock_due_actions", room=room)
        return await self._start_due(connection, claimer, await self._read(connection, ids))

    async def _start_due(
        self, connection: AsyncConnection, claimer: Claimer, due: Sequence[tuple[ScheduledAction, bool, datetime]]
    ) -> Taken:
        """Starts what the plans say, and stores when the actions are due again. Their locks are held."""
        plans = [
            (action, plan_due(action, now, busy=unfinished and not action.allow_concurrent))
            for action, unfinished, now in due
            # Read again under the lock: somebody may have been at it between the look and the lock.
            if action.status == "active" and action.next_run_at is not None and action.next_run_at <= now
        ]
        new = [_new_run(action, "running", plan.start) for action, plan in plans if plan.start is not None]
        new += [_new_run(action, "skipped", at, why) for action, plan in plans for at, why in plan.skipped]
        made = await self._insert(connection, new, claimer)
        started = {run.action_id: run for run in made if not run.state.final}
        after = [
            plan.after if plan.start is None or action.id in started else _not_counted(plan.after, action)
            for action, plan in plans
        ]
        if after:
            await connection.execute(STATEMENTS["advance_actions"], {"changed": _as_json(after)})
        before = {action.id: action for action, _ in plans}
        return Taken(
            [Claim(action, started[action.id], _due(before[action.id])) for action in after if action.id in started],
            [Settled(before[run.action_id].action_type, run.state) for run in made if run.state.final],
        )

    async def claim_occurrence(self, claimer: Claimer, action: ScheduledAction) -> Taken:
        assert action.id is not None
        async with self._database.transaction() as connection:
            if not await self._try_lock(connection, action.id):
                return Taken()
            await connection.execute(select(actions.c.id).where(actions.c.id == action.id).with_for_update())
            found = await self._read(connection, [action.id])
            if not found or found[0][0].next_occurrence != action.next_occurrence:
                return Taken()  # gone, or somebody was faster
            if action.next_occurrence is not None:
                return await self._start_due(connection, claimer, found)
            return await self._start_now(connection, claimer, *found[0])

    async def _start_now(
        self, connection: AsyncConnection, claimer: Claimer, action: ScheduledAction, unfinished: bool, now: datetime
    ) -> Taken:
        if not runs_when_executed(action):
            return Taken()
        busy = unfinished and not action.allow_concurrent
        new = _new_run(action, "skipped" if busy else "running", None, BUSY if busy else None, trigger="manual")
        made = await self._insert(connection, [new], claimer)
        if busy or not made:
            return Taken((), [Settled(action.action_type, run.state) for run in made])
        after = counted(action, now)
        await connection.execute(STATEMENTS["advance_actions"], {"changed": _as_json([after])})
        return Taken([Claim(after, run, run.scheduled_for) for run in made])

    async def renew(self, claimer: Claimer, attempts: Collection[Attempt]) -> set[Attempt]:
        bound = {"ids": [run for run, _ in attempts], "attempts": [attempt for _, attempt in attempts]}
        async with self._database.transaction() as connection:
            renewed = await connection.execute(STATEMENTS["renew"], {**bound, **claimer._asdict()})
            return {Attempt(*row) for row in renewed}

    async def finish(self, endings: Sequence[Ending]) -> set[Attempt]:
        async with self._database.transaction() as connection:
            bound = {"endings": json.dumps([_flat(ending) for ending in endings])}
            taken = {Attempt(*row) for row in await connection.execute(STATEMENTS["finish"], bound)}
            if any(ending.handed_back for ending in endings):
                await connection.execute(STATEMENTS["announce"], self._bound())
        return taken

    async def forget_runs(self, older_than: float) -> int:
        async with self._database.transaction() as connection:
            return (await connection.execute(STATEMENTS["forget_runs"], self._bound(age=older_than))).rowcount

    async def _ids(self, connection: AsyncConnection, statement: str, **bound: Any) -> list[int]:
        return list(await connection.scalars(STATEMENTS[statement], self._bound(**bound)))

    async def _read(
        self, connection: AsyncConnection, ids: Sequence[int]
    ) -> list[tuple[ScheduledAction, bool, datetime]]:
        if not ids:
            return []
        typed = STATEMENTS["read_actions"].columns(*actions.c)
        rows = (await connection.execute(typed, self._bound(ids=sorted(set(ids))))).mappings()
        return [
            (action_from({name: row[name] for name in actions.c.keys()}), row["unfinished"], row["now"])  # noqa: SIM118
            for row in rows
        ]

    async def _insert(
        self, connection: AsyncConnection, new: Sequence[dict[str, Any]], claimer: Claimer
    ) -> list[ScheduledRun]:
        if not new:
            return []
        return await self._changed_runs(
            connection, "insert_runs", **self._bound(new=json.dumps(new)), **claimer._asdict()
        )

    async def _changed_runs(self, connection: AsyncConnection, statement: str, **bound: Any) -> list[ScheduledRun]:
        typed: TextClause = STATEMENTS[statement].columns(*_RUNS)  # type: ignore[assignment]
        return [run_from(dict(row)) for row in (await connection.execute(typed, bound)).mappings()]


def _new_run(
    action: ScheduledAction, state: str, scheduled_for: datetime | None, error: str | None = None, **more: Any
) -> dict[str, Any]:
    return {
        "action_id": action.id,
        "scheduled_for": scheduled_for.isoformat() if scheduled_for else None,
        "trigger": "schedule",
        "exclusive": not action.allow_concurrent,
        "state": RunState(state),
        "error": error,
        **more,
    }


def _flat(ending: Ending) -> dict[str, Any]:
    return {**ending._asdict(), **ending.of._asdict()}


def _not_counted(after: ScheduledAction, before: ScheduledAction) -> ScheduledAction:
    """Its occurrence had been run before (its schedule was set back): on to the next, and that one does not count."""
    return replace(after, execution_count=before.execution_count, last_run_at=before.last_run_at)


def _due(action: ScheduledAction) -> datetime:
    assert action.next_run_at is not None
    return action.next_run_at


def _as_json(changed: Sequence[ScheduledAction]) -> str:
    return json.dumps([asdict(action) for action in changed], default=datetime.isoformat)
