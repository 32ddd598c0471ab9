"""The caller's connections: telling them apart, refusing those that cannot carry a claim, and driving one on them.

No driver is imported here. Whoever hands in a connection has loaded its driver: it is looked up in ``sys.modules``.
"""

from __future__ import annotations

import re
import select
import sys
from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any, Final, Generic, NoReturn, Protocol

from ..deadline import Deadline
from ..errors import BackendUnavailable, InvalidOption, Unsupported
from .steps import Answer, Step, Steps, T

_AS_GOOD_AS_DONE: Final = 0.1
_CANCELLED_BY: Final = 5.0


class SyncConnection(Protocol):
    """A psycopg ``Connection``, or SQLAlchemy's ``Connection``, ``Session`` or ``scoped_session``."""

    # What tells the two apart for a type checker, without any driver installed.
    def commit(self) -> None: ...


class AsyncConnection(Protocol):
    """A psycopg ``AsyncConnection``, or the async ones of SQLAlchemy."""

    def commit(self) -> Coroutine[Any, Any, None]: ...


class Pending(Generic[T]):
    """A claim on an async connection, to be awaited. Not to be tested: an ``await`` left out must not look claimed."""

    __slots__ = ("_coroutine",)

    def __init__(self, coroutine: Coroutine[Any, Any, T]) -> None:
        self._coroutine = coroutine

    def __await__(self) -> Generator[Any, Any, T]:
        return self._coroutine.__await__()

    def __bool__(self) -> NoReturn:
        self._coroutine.close()
        raise TypeError("a claim on an async connection is to be awaited before it is looked at")


def carry_out(conn: Any, claiming: Steps[T]) -> T | Pending[T]:
    """Sends the steps on ``conn``. Async connections give the outcome when it is awaited."""
    conn = _behind_scope(conn)
    if _is_a(conn, "psycopg", "Connection"):
        return _on_psycopg(conn, claiming)
    if _is_a(conn, "psycopg", "AsyncConnection"):
        return Pending(_on_async_psycopg(conn, claiming))
    if _is_a(conn, "sqlalchemy", "Connection") or _is_a(conn, "sqlalchemy.orm", "Session"):
        return _on_sqlalchemy(conn, claiming)
    if _is_a(conn, "sqlalchemy.ext.asyncio", "AsyncConnection", "AsyncSession"):
        # SQLAlchemy's own bridge: the sync connection behind the async one is driven, and the task suspends in it.
        return Pending(conn.run_sync(_on_sqlalchemy, claiming))
    raise InvalidOption(
        f"conn is a {type(conn).__name__}: give the connection whose transaction is to hold the lock: a psycopg "
        "Connection or AsyncConnection, or SQLAlchemy's Connection, Session, AsyncConnection or AsyncSession"
    )


def _behind_scope(conn: Any) -> Any:
    scoped = _is_a(conn, "sqlalchemy.orm", "scoped_session")
    return conn() if scoped or _is_a(conn, "sqlalchemy.ext.asyncio", "async_scoped_session") else conn


def _is_a(value: object, module: str, *kinds: str) -> bool:
    loaded = sys.modules.get(module)
    return any(isinstance(value, getattr(loaded, kind, ())) for kind in kinds)


def _drive(claiming: Steps[T], send: Callable[[Step], Answer]) -> T:
    try:
        step = next(claiming)
        while True:
            try:
                answer = send(step)
            except BaseException as error:
                step = claiming.throw(error)
            else:
                step = claiming.send(answer)
    except StopIteration as end:
        outcome: T = end.value
        return outcome


async def _drive_async(claiming: Steps[T], send: Callable[[Step], Awaitable[Answer]]) -> T:
    try:
        step = next(claiming)
        while True:
            try:
                answer = await send(step)
            except BaseException as error:
                step = claiming.throw(error)
            else:
                step = claiming.send(answer)
    except StopIteration as end:
        outcome: T = end.value
        return outcome


def _on_psycopg(conn: Any, claiming: Steps[T]) -> T:
    psycopg = sys.modules["psycopg"]
    _refuse_unusable(conn)

    def send(step: Step) -> Answer:
        # Not conn.cursor(): its class and its rows are the caller's choice, and may read neither %s nor tuples.
        with psycopg.Cursor(conn, row_factory=psycopg.rows.tuple_row) as cursor:
            try:
                cursor.execute(step.sql, step.parameters or None)
            except BaseException:
                _settle(conn)
                raise
            return Answer(_columns(cursor), cursor.fetchall()) if cursor.description else Answer()

    return _drive(claiming, send)


def _settle(conn: Any) -> None:
    """Brings the statement to its end that Ctrl-C struck inside the driver, and not while it waited, which it sees to.

    Else the connection would be of no use any more. One that does not wait for a lock is not cancelled: it is as good
    as done, and the transaction would fail.
    """
    pgconn, active = conn.pgconn, sys.modules["psycopg"].pq.TransactionStatus.ACTIVE
    if pgconn.transaction_status == active and not _comes_to_its_end(pgconn, _AS_GOOD_AS_DONE):
        conn.cancel_safe()
        _comes_to_its_end(pgconn, _CANCELLED_BY)


def _comes_to_its_end(pgconn: Any, seconds: float) -> bool:
    poll = select.poll()
    poll.register(pgconn.socket, select.POLLIN)
    deadline = Deadline.after(seconds)
    while True:
        while pgconn.is_busy():
            if not poll.poll(deadline.remaining * 1000):
                return False
            pgconn.consume_input()
        if pgconn.get_result() is None:
            return True


async def _on_async_psycopg(conn: Any, claiming: Steps[T]) -> T:
    psycopg = sys.modules["psycopg"]
    _refuse_unusable(conn)

    async def send(step: Step) -> Answer:
        async with psycopg.AsyncCursor(conn, row_factory=psycopg.rows.tuple_row) as cursor:
            await cursor.execute(step.sql, step.parameters or None)
            return Answer(_columns(cursor), await cursor.fetchall()) if cursor.description else Answer()

    return await _drive_async(claiming, send)


def _columns(cursor: Any) -> list[str]:
    return [column.name for column in cursor.description]


# A caller's connection may be set to stream; that declares a cursor for every statement, and SAVEPOINT has none.
_AT_ONCE = {"stream_results": False, "yield_per": None}


def _on_sqlalchemy(conn: Any, claiming: Steps[T]) -> T:
    if _is_a(conn, "sqlalchemy.orm", "Session"):
        conn = conn.connection()  # the one of its transaction; nothing is flushed
    if conn.dialect.name != "postgresql":
        raise Unsupported(f"conn is a connection to {conn.dialect.name}: claims are made on PostgreSQL")
    behind = conn.connection
    if _is_a(behind.driver_connection, "psycopg", "Connection", "AsyncConnection"):
        _refuse_unusable(behind.driver_connection)
    elif behind.dbapi_connection.autocommit:
        raise _outside_transaction()
    numbered = conn.dialect.paramstyle == "numeric_dollar"

    def send(step: Step) -> Answer:
        sql = _numbered(step) if numbered else step.sql
        result = conn.exec_driver_sql(sql, step.parameters or None, _AT_ONCE)
        return Answer(list(result.keys()), result.fetchall()) if result.returns_rows else Answer()

    return _drive(claiming, send)


def _numbered(step: Step) -> str:
    """The statement with ``$1`` for the first ``%s`` and so on, as asyncpg reads it."""
    if not step.parameters:
        return step.sql
    numbers = iter(range(1, len(step.parameters) + 1))
    return re.sub("%[s%]", lambda found: f"${next(numbers)}" if found[0] == "%s" else "%", step.sql)


def _refuse_unusable(conn: Any) -> None:
    """Looks at what psycopg knows; nothing is sent."""
    pq = sys.modules["psycopg"].pq
    if conn.closed:
        raise BackendUnavailable("conn is closed")
    if conn.pgconn.pipeline_status != pq.PipelineStatus.OFF:
        raise Unsupported("conn is in pipeline mode, where answers come later: claim before the pipeline is opened")
    match conn.pgconn.transaction_status:
        case pq.TransactionStatus.INERROR:
            raise Unsupported("conn's transaction has failed: roll it back first")
        case pq.TransactionStatus.ACTIVE:
            raise Unsupported("conn is busy with another statement: a connection serves one caller at a time")
        case pq.TransactionStatus.IDLE if conn.autocommit:
            raise _outside_transaction()


def _outside_transaction() -> Unsupported:
    return Unsupported(
        "conn is in autocommit mode with no transaction open: the lock would end at once, with its own statement; "
        "open a transaction first"
    )
