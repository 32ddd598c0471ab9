"""Callers with a connection of each kind and one face, so that one test says it for all of them."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session

from holdfast import RowClaim, claim, claim_row


class Caller:
    """One connection, and what a caller does on it. Async ones are run in a loop of their own."""

    def __init__(self, conn: Any, now: Callable[[Any], Any], execute: Callable[[str], Any]) -> None:
        self.conn = conn
        self.now = now
        """What came of a call: of an async one, by running it."""
        self._execute = execute

    def claim(self, *key: Any, **options: Any) -> bool:
        claimed: bool = self.now(claim(self.conn, *key, **options))
        return claimed

    def claim_row(self, *arguments: Any, **options: Any) -> RowClaim:
        row: RowClaim = self.now(claim_row(self.conn, *arguments, **options))
        return row

    def sql(self, statement: str) -> list[tuple[Any, ...]]:
        result = self._execute(statement)
        has_rows = result.description if isinstance(self.conn, PSYCOPG) else result.returns_rows
        return [tuple(row) for row in self.now(result.fetchall())] if has_rows else []

    def value(self, statement: str) -> Any:
        ((value,),) = self.sql(statement)
        return value

    def commit(self) -> None:
        self.now(self.conn.commit())

    def rollback(self) -> None:
        self.now(self.conn.rollback())


PSYCOPG = (psycopg.Connection, psycopg.AsyncConnection)
KINDS = ["psycopg", "psycopg-async", "connection", "session", "async-connection", "async-session", "asyncpg"]
"""psycopg's own two, SQLAlchemy's four on psycopg, and SQLAlchemy on a driver whose parameters are numbered."""
ASYNC_KINDS = [kind for kind in KINDS if kind.startswith("async") or kind.endswith("async")]


@contextmanager
def caller(kind: str, url: str, *, autocommit: bool = False) -> Iterator[Caller]:
    driver = "asyncpg" if kind == "asyncpg" else "psycopg"
    address = url.replace("postgresql://", f"postgresql+{driver}://")
    options: dict[str, Any] = {"pool_size": 1, "max_overflow": 0}  # a session has the same connection again and again
    if autocommit:
        options["isolation_level"] = "AUTOCOMMIT"
    if kind == "psycopg":
        with psycopg.connect(url, autocommit=autocommit) as psycopg_conn:
            yield Caller(psycopg_conn, lambda value: value, psycopg_conn.execute)  # type: ignore[arg-type]
            psycopg_conn.rollback()
    elif kind in ("connection", "session"):
        engine = sqlalchemy.create_engine(address, **options)
        try:
            with engine.connect() if kind == "connection" else Session(engine) as conn:
                yield Caller(conn, lambda value: value, lambda statement: conn.execute(sqlalchemy.text(statement)))
        finally:
            engine.dispose()
    else:
        with asyncio.Runner() as runner:

            def now(value: Any) -> Any:
                async def awaited() -> Any:
                    return await value

                return runner.run(awaited()) if hasattr(value, "__await__") else value

            if kind == "psycopg-async":
                conn = now(psycopg.AsyncConnection.connect(url, autocommit=autocommit))
                yield Caller(conn, now, lambda statement: now(conn.execute(statement)))
                now(conn.close())
                return
            async_engine = create_async_engine(address, **options)
            conn = AsyncSession(async_engine) if kind == "async-session" else now(async_engine.connect().start())
            try:
                yield Caller(conn, now, lambda statement: now(conn.execute(sqlalchemy.text(statement))))
            finally:
                now(conn.close())
                now(async_engine.dispose())
