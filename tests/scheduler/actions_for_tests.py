"""Ways to put actions into a database and to see what became of them, from outside the instances."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import psycopg
from instances import Effects, add_handlers, wait_until

from holdfast.scheduler import ScheduledAction, Scheduler

T = TypeVar("T")


def ask(url: str, question: Callable[[Scheduler], Coroutine[Any, Any, T]], **options: Any) -> T:
    """Asks a scheduler that is not started: another instance, as far as the others are concerned."""

    async def main() -> T:
        scheduler = Scheduler(url, **options)
        try:
            return await question(scheduler)
        finally:
            await scheduler.stop()

    return asyncio.run(main())


def add(url: str, effects: Effects, action_type: str, *, namespace: int = 2, **fields: Any) -> int:
    add_handlers(effects)
    action = ScheduledAction(action_type=action_type, **fields)
    added = ask(url, lambda scheduler: scheduler.add(action), namespace=namespace)
    assert added.id is not None
    return added.id


def trigger(url: str, action_id: int) -> int:
    return ask(url, lambda scheduler: scheduler.trigger(action_id)).id


def run_row(db: psycopg.Connection[Any], run_id: int) -> dict[str, Any]:
    row = db.execute("select * from holdfast.scheduled_run where id = %s", (run_id,)).fetchone()
    assert row is not None
    return dict(row)


def state_of(db: psycopg.Connection[Any], run_id: int) -> str:
    return str(run_row(db, run_id)["state"])


def wait_for_state(db: psycopg.Connection[Any], run_id: int, state: str) -> dict[str, Any]:
    wait_until(lambda: state_of(db, run_id) == state, f"run {run_id} to be {state}: {run_row(db, run_id)}")
    return run_row(db, run_id)


def end_lease(db: psycopg.Connection[Any], run_id: int) -> None:
    """As if the time of an instance that is dead had passed."""
    db.execute("update holdfast.scheduled_run set lease_until = now() - interval '1 s' where id = %s", (run_id,))


def advisory_locks(db: psycopg.Connection[Any]) -> list[Any]:
    """Those in this database: others of the server are none of ours."""
    here = "(select oid from pg_database where datname = current_database())"
    return db.execute(f"select * from pg_locks where locktype = 'advisory' and database = {here}").fetchall()  # type: ignore[arg-type]


def unfinished(db: psycopg.Connection[Any]) -> int:
    row = db.execute("select count(*) as n from holdfast.scheduled_run where finished_at is null").fetchone()
    assert row is not None
    return int(row["n"])
