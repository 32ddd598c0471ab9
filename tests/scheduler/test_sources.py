"""``async_db`` in every form that an application may have."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool
from sqlalchemy.ext.asyncio import create_async_engine

from holdfast import InvalidOption
from holdfast.scheduler import ACTION_DISPATCHERS, ScheduledAction, Scheduler


class ServiceWithPool:
    """As an application wraps its pool."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool


class BarePool:
    """Anything that lends connections."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.lent = 0

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Any]:
        async with await psycopg.AsyncConnection.connect(self.url, autocommit=True, row_factory=dict_row) as connection:
            self.lent += 1
            yield connection
            assert connection.autocommit, "given back otherwise than it was lent"
            self.lent -= 1


@asynccontextmanager
async def source(kind: str, url: str) -> AsyncIterator[Any]:
    if kind == "url":
        yield url
    elif kind == "bare":
        pool = BarePool(url)
        yield ServiceWithPool(pool)
        assert pool.lent == 0
    elif kind.startswith("pool"):
        kwargs = {"autocommit": True, "row_factory": dict_row} if "dict" in kind else {}
        async with AsyncConnectionPool(url, min_size=1, max_size=3, open=False, kwargs=kwargs) as opened:
            yield ServiceWithPool(opened) if "service" in kind else opened
            assert opened.get_stats().get("requests_errors", 0) == 0
    else:
        given = psycopg.conninfo.conninfo_to_dict(url)
        driver, _, level = kind.partition(" ")
        address = f"postgresql+{driver}:///{given['dbname']}?host={given['host']}&user={given['user']}"
        engine = create_async_engine(address, **({"isolation_level": level} if level else {}))
        yield engine
        await engine.dispose()


async def is_in_a_transaction(scheduler: Scheduler, url: str) -> None:
    """What is locked in a transaction of the store is locked until its end."""
    store: Any = scheduler._store
    async with store._database.transaction() as connection:
        assert await store._try_lock(connection, 1)
        assert not await scheduler._try_acquire_action_lock(1)
    assert await scheduler._try_acquire_action_lock(1)


KINDS = ["url", "pool", "pool dict", "pool service dict", "bare", "psycopg", "asyncpg"]
AUTOCOMMIT = ["psycopg AUTOCOMMIT", "asyncpg AUTOCOMMIT"]


@pytest.mark.parametrize("kind", [*KINDS, *AUTOCOMMIT])
def test_a_scheduler_works_on_it(url: str, kind: str, db: psycopg.Connection[Any]) -> None:
    ran = asyncio.Event()

    async def note(execution: Any) -> dict[str, Any]:
        ran.set()
        return {"seen": execution.run.payload}

    async def main() -> None:
        async with source(kind, url) as async_db, asyncio.timeout(20):
            scheduler = Scheduler(async_db, dispatchers={**ACTION_DISPATCHERS, "note": note}, poll_interval=0.2)
            async with scheduler:
                assert await scheduler._try_acquire_action_lock(1)
                await is_in_a_transaction(scheduler, url)
                action = await scheduler.add(ScheduledAction(action_type="note", action_config={"a": [1, None]}))
                assert action.id is not None and (await scheduler.get(action.id)).action_config == {"a": [1, None]}
                await scheduler.trigger(action.id, {"x": 1})
                await ran.wait()

    asyncio.run(main())
    row = db.execute("select state, result from holdfast.scheduled_run").fetchone()
    assert row == {"state": "completed", "result": {"seen": {"x": 1}}}


def test_a_cancelled_question_leaves_the_pool_whole(url: str) -> None:
    async def main() -> None:
        async with AsyncConnectionPool(url, min_size=2, max_size=2, open=False) as pool:
            scheduler = Scheduler(pool)
            for pause in (0, 0.0005, 0.001, 0.002, 0.004) * 4:
                asking = asyncio.create_task(scheduler.actions())
                await asyncio.sleep(pause)
                asking.cancel()
                await asyncio.wait([asking])
            async with asyncio.timeout(10):
                for _ in range(4):
                    assert await scheduler.actions() == []
                async with pool.connection(), pool.connection():
                    pass  # both are there

    asyncio.run(main())


@pytest.mark.parametrize("wrong", ["mysql://x", 7, object(), []])
def test_anything_else_is_refused_by_name(wrong: Any) -> None:
    with pytest.raises(InvalidOption, match="async_db"):
        Scheduler(wrong)
