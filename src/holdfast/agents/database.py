"""The server's own connections: a pool for short transactions, apart from those that locks live on."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final

import psycopg
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_sessionmaker, create_async_engine

from ..engines.postgres.connect import plain_conninfo

CHANNEL: Final = "holdfast_inbox"

# Connection trouble, out of resources, shut down, disk or system trouble, dead-lock or serialisation, object busy.
_NOT_THE_STATEMENTS_FAULT: Final = ("08", "53", "57", "58", "40", "55")


class Database:
    """Short transactions on a bounded pool. Nobody keeps a connection while waiting for a lock."""

    def __init__(self, url: str, *, pool_size: int = 15, max_overflow: int = 10, pool_wait: float = 10.0) -> None:
        self.conninfo: Final = plain_conninfo(url)
        self._engine = create_async_engine(
            "postgresql+psycopg://",
            async_creator=self.connect,
            pool_size=pool_size,
            max_overflow=max_overflow,
            pool_timeout=pool_wait,
            hide_parameters=True,  # what agents say does not belong into logs
        )
        self._autocommit = self._engine.execution_options(isolation_level="AUTOCOMMIT")
        self._sessions = async_sessionmaker(self._engine, expire_on_commit=False)

    async def connect(self) -> psycopg.AsyncConnection[Any]:
        """A connection of its own, outside the pool."""
        return await psycopg.AsyncConnection.connect(self.conninfo)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncSession]:
        async with self._sessions.begin() as session:
            yield session

    @asynccontextmanager
    async def statement(self) -> AsyncIterator[AsyncConnection]:
        """For single statements: each is a transaction, and one round trip."""
        async with self._autocommit.connect() as connection:
            yield connection

    async def close(self) -> None:
        await self._engine.dispose()


async def notify(db: AsyncSession | AsyncConnection, message: str) -> None:
    """Tells every process's drainer. Only for what is rare: such transactions commit one after the other."""
    await db.execute(text("select pg_notify(:channel, :message)"), {"channel": CHANNEL, "message": message})


def is_unavailable(error: BaseException) -> bool:
    """Whether the database, and not what was asked of it, is to blame: the same may well succeed later."""
    if isinstance(error, PoolTimeout | ConnectionError | TimeoutError):
        return True
    origin = error.orig if isinstance(error, DBAPIError) else error
    if not isinstance(origin, psycopg.Error):
        return False
    return origin.sqlstate is None or origin.sqlstate[:2] in _NOT_THE_STATEMENTS_FAULT
