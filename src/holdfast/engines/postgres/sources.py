"""Lock connections from what an application has: a SQLAlchemy engine, or a function that connects."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import psycopg
from psycopg import pq

from ...errors import InvalidOption
from .connect import checked_conninfo
from .engine import PostgresEngine, checked_options

_LIBPQ_NAMES = {"database": "dbname", "username": "user"}


def engine_from(source: Any, options: dict[str, Any]) -> PostgresEngine:
    """An engine that connects the way ``source`` does, on connections of its own."""
    checked = checked_options(dict(options))
    if not hasattr(source, "dialect"):
        connect: Callable[[], psycopg.Connection[Any]] = source
        return PostgresEngine(connect, (connect,), **checked)
    conninfo = conninfo_of(getattr(source, "sync_engine", source))
    return PostgresEngine(lambda: psycopg.connect(conninfo), (conninfo,), **checked)


def conninfo_of(engine: Any) -> str:
    if engine.dialect.name != "postgresql":
        raise InvalidOption(f"configure: advisory locks need PostgreSQL; this engine speaks {engine.dialect.name}")
    known = {option.keyword.decode() for option in pq.Conninfo.get_defaults()}
    given = {_LIBPQ_NAMES.get(name, name): value for name, value in _connect_arguments(engine).items()}
    # What is left out is the driver's own business (row factories, statement caches), not the server's.
    return checked_conninfo("", **{name: value for name, value in given.items() if name in known and value is not None})


class _Captured(Exception):
    def __init__(self, arguments: dict[str, Any]) -> None:
        self.arguments = arguments


def _connect_arguments(engine: Any) -> dict[str, Any]:
    """What the engine would connect with: its URL and its ``connect_args``, which it shows to nobody else.

    A listener sees them when a connection is about to be made, and stops it. The connection would be for a pool of our
    own (``recreate``), and the listener is deaf to other threads: the application's pool does not notice.
    """
    from sqlalchemy import event

    here = threading.get_ident()

    def capture(dialect: Any, record: Any, arguments: Any, parameters: dict[str, Any]) -> None:
        if threading.get_ident() == here:
            raise _Captured(dict(parameters))

    event.listen(engine, "do_connect", capture)
    try:
        engine.pool.recreate().connect()
    except _Captured as captured:
        return captured.arguments
    finally:
        event.remove(engine, "do_connect", capture)
    raise InvalidOption("configure: this engine connects by a function of its own; give that function to configure()")
