"""Statements that lock several runs lock them in one order. Each race is made to happen: two who are at the same three
runs both get one and wait for the middle one, which the test holds; then it lets go.
"""

import asyncio
from collections.abc import Coroutine
from typing import Any

import psycopg
import pytest
from actions_for_tests import add, trigger
from instances import Effects
from test_single_instance import until

from holdfast.scheduler import RunState, Scheduler
from holdfast.scheduler.store import Attempt, Claimer, Ending

CLAIMER = Claimer("here", 60)


@pytest.fixture
def attempts(url: str, effects: Effects, db: psycopg.Connection[Any]) -> list[Attempt]:
    """Three runs of one action, under way, whose order by time, and in the table's pages, is not that of their ids."""
    action = add(url, effects, "record", allow_concurrent=True)
    first, second, third = (trigger(url, action) for _ in range(3))
    db.execute("alter database " + db.info.dbname + " set enable_seqscan = off")  # type: ignore[arg-type]
    for join in ("hashjoin", "mergejoin"):  # as with a large table: row by row, as they are named
        db.execute(f"alter database {db.info.dbname} set enable_{join} = off")  # type: ignore[arg-type]
    for run, hour in ((third, 1), (second, 2), (first, 3)):
        db.execute(
            "update holdfast.scheduled_run set state = 'running', attempt = 1, instance = 'here', due_at = null, "
            "lease_until = now() + interval '1 h', scheduled_for = now() + %s * interval '1 h' where id = %s",
            (hour, run),
        )
    return [Attempt(run, 1) for run in (first, second, third)]


async def both_are_at_it(
    url: str, db: psycopg.Connection[Any], middle: Attempt, *statements: Coroutine[Any, Any, Any]
) -> list[Any]:
    """Begins them while the middle run is locked, and lets go when all of them wait. What they answer, in time."""
    waiting = (
        "select count(*) as n from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
    )

    def how_many_wait() -> int:
        row = db.execute(waiting).fetchone()
        assert row is not None
        return int(row["n"])

    with psycopg.connect(url) as holder:
        holder.execute("select from holdfast.scheduled_run where id = %s for update", (middle.run_id,))
        tasks = []
        for number, statement in enumerate(statements, 1):
            tasks.append(asyncio.create_task(statement))
            await until(lambda number=number: how_many_wait() == number)
    return await asyncio.gather(*tasks, return_exceptions=True)


def test_renewing_and_ending_the_same_runs_at_the_same_time_is_no_deadlock(
    url: str, db: psycopg.Connection[Any], attempts: list[Attempt]
) -> None:
    endings = [Ending(attempt, RunState.COMPLETED, 1.0) for attempt in attempts]

    async def main() -> None:
        scheduler = Scheduler(url)
        store = scheduler._store
        ended, renewed = await both_are_at_it(
            url, db, attempts[1], store.finish(endings), store.renew(CLAIMER, attempts[::-1])
        )
        assert ended == set(attempts) and renewed == set()
        await scheduler.stop()

    asyncio.run(main())


def test_deleting_an_action_while_its_runs_end_is_no_deadlock(
    url: str, db: psycopg.Connection[Any], attempts: list[Attempt]
) -> None:
    endings = [Ending(attempt, RunState.COMPLETED, 1.0) for attempt in attempts]

    async def main() -> None:
        scheduler = Scheduler(url)
        store = scheduler._store
        ended, removed = await both_are_at_it(url, db, attempts[1], store.finish(endings), store.remove(1))
        assert ended == set(attempts) and removed is True
        await scheduler.stop()

    asyncio.run(main())
    assert db.execute("select from holdfast.scheduled_run").fetchall() == []
