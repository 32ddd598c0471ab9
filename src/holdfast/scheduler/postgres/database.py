"""Reaching the database by whatever the application has: an address, an engine, a pool, or an object with a pool.

Each becomes a SQLAlchemy engine. What goes wrong comes out as ``BackendUnavailable``, with the server's own words and
none of ours: statements and parameters may hold secrets.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, Final, NamedTuple

import psycopg
from psycopg.rows import tuple_row
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine
from sqlalchemy.pool import NullPool

from ...engines.postgres.connect import checked_conninfo, plain_conninfo
from ...engines.postgres.sources import conninfo_of
from ...errors import BackendUnavailable, InvalidOption
from ..store import DataRefused

_PATIENCE: Final = 10.0
"""Seconds that a transaction may take, on a network that may not answer any more."""
_NO_TABLES: Final = ("3F000", "42P01", "42703")


class Database(NamedTuple):
    engine: AsyncEngine
    conninfo: str | None
    """How to connect once more, to listen; None if nobody can say."""
    ours: bool
    """Whether the engine is to be closed by us."""

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncConnection]:
        """Commits at its end. A commit whose answer is lost is an error: what it has done is the server's to know."""
        try:
            async with asyncio.timeout(_PATIENCE), self.engine.begin() as connection:
                yield connection
        except DBAPIError as error:
            raise _unavailable(error.orig or error) from None
        except (psycopg.Error, PoolTimeout, OSError) as error:  # TimeoutError is an OSError
            raise _unavailable(error) from None

    async def close(self) -> None:
        if self.ours:
            await self.engine.dispose()


def database_of(source: Any) -> Database:
    if isinstance(source, str):
        return _at_address(source)
    if isinstance(source, AsyncEngine):
        if source.dialect.name != "postgresql":
            raise InvalidOption(f"async_db: the scheduler needs PostgreSQL; this engine speaks {source.dialect.name}")
        return Database(_in_transactions(source), _conninfo_or_none(source), ours=False)
    for pool in (getattr(source, "_pool", None), source):
        if callable(getattr(pool, "connection", None)):
            return Database(_engine_on(pool), _conninfo_of_pool(pool), ours=True)
    raise InvalidOption(
        f"async_db is a {type(source).__name__}: give a postgresql:// URL, a psycopg AsyncConnectionPool, a SQLAlchemy "
        "AsyncEngine, an object with _pool.connection(), or None for a single instance without a database"
    )


def _at_address(url: str) -> Database:
    address = url.replace("postgresql+psycopg://", "postgresql://", 1)
    if not address.startswith(("postgresql://", "postgres://")) and "=" not in address:
        raise InvalidOption("async_db: the scheduler's address begins with postgresql://")
    conninfo = plain_conninfo(address)

    async def connect() -> psycopg.AsyncConnection[Any]:
        return await psycopg.AsyncConnection.connect(conninfo)

    engine = create_async_engine(
        "postgresql+psycopg://", async_creator=connect, pool_size=4, max_overflow=4, pool_timeout=_PATIENCE,
        use_native_hstore=False,
    )  # fmt: skip
    return Database(_in_transactions(engine), conninfo, ours=True)


def _in_transactions(engine: AsyncEngine) -> AsyncEngine:
    """Whatever its owner chose (AUTOCOMMIT, even): a claim needs a transaction, whose statements see what is new."""
    return engine.execution_options(isolation_level="READ COMMITTED")


def _conninfo_or_none(engine: AsyncEngine) -> str | None:
    try:
        return conninfo_of(engine.sync_engine)
    except InvalidOption:  # it connects by a function of its own
        return None


def _conninfo_of_pool(pool: Any) -> str | None:
    conninfo, given = getattr(pool, "conninfo", None), getattr(pool, "kwargs", None)
    if not isinstance(conninfo, str) or not isinstance(given, dict | None):
        return None
    known = {option.keyword.decode() for option in psycopg.pq.Conninfo.get_defaults()}
    return checked_conninfo(conninfo, **{name: value for name, value in (given or {}).items() if name in known})


def _engine_on(pool: Any) -> AsyncEngine:
    async def borrow() -> _Borrowed:
        return await _Borrowed.from_pool(pool.connection)

    engine = create_async_engine(
        "postgresql+psycopg://", async_creator=borrow, poolclass=NullPool, use_native_hstore=False
    )
    return _in_transactions(engine)


class _Borrowed:
    """A pool's connection as SQLAlchemy wants it. Closing it gives it back, as it was."""

    def __init__(self, connection: Any, given_back: AsyncExitStack) -> None:
        self._connection = connection
        self._given_back = given_back

    @classmethod
    async def from_pool(cls, lend: Callable[[], AbstractAsyncContextManager[Any]]) -> _Borrowed:
        async with AsyncExitStack() as stack:
            connection = await stack.enter_async_context(lend())
            # SQLAlchemy will set both as it needs them.
            stack.push_async_callback(connection.set_isolation_level, connection.isolation_level)
            stack.push_async_callback(connection.set_autocommit, connection.autocommit)
            return cls(connection, stack.pop_all())
        raise AssertionError("unreachable")

    def cursor(self, *arguments: Any, **options: Any) -> Any:
        # Not connection.cursor(): its class and its rows are the pool's owner's choice.
        return psycopg.AsyncCursor(self._connection, row_factory=tuple_row)

    def add_notice_handler(self, handler: Any) -> None:
        """Not added: it would be once more for every time the connection is borrowed."""

    async def close(self) -> None:
        if not self._connection.closed:
            await self._connection.rollback()
        await self._given_back.aclose()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


def _unavailable(error: BaseException) -> BackendUnavailable:
    if isinstance(error, TimeoutError):
        return BackendUnavailable(f"PostgreSQL did not answer within {_PATIENCE:g} s")
    code = getattr(error, "sqlstate", None)
    if code in _NO_TABLES:
        return BackendUnavailable("the scheduler's tables are not in this database: run `holdfast db upgrade`")
    kind = DataRefused if str(code)[:2] in ("22", "23") else BackendUnavailable
    return kind(f"PostgreSQL: {str(error).partition(chr(10))[0]}")
