"""Where the data is: the database that was given, or an embedded one in the data folder; and whether it has room."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import psycopg

from .._sync.locks import Locks
from ..embedded import start_postgres
from ..engines.postgres.connect import plain_conninfo
from ..errors import LockError, Unsupported
from .service import connections_of_a_worker
from .settings import Settings

_SPARE: Final = 10
"""For migrations, for somebody with psql, for `holdfast` commands."""
_EMBEDDED: Final = 200

_ROOM: Final = """
    select least(
        current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
            - coalesce(current_setting('reserved_connections', true), '0')::int,
        (select nullif(datconnlimit, -1) from pg_database where datname = current_database()),
        (select nullif(rolconnlimit, -1) from pg_roles where rolname = current_user)
    )
"""


@contextmanager
def database(settings: Settings, *, must_exist: bool = False) -> Iterator[str]:
    """The database's address, for as long as the block lasts. An embedded one may well run already, for others."""
    if settings.database_url is not None:
        yield settings.database_url.get_secret_value()
        return
    if must_exist and not (settings.data_dir / "postgres" / "cluster").is_dir():
        raise LockError(f"there is no database in {settings.data_dir}: start holdfast serve first, or say where it is")
    room = {"max_connections": str(max(_EMBEDDED, needed(settings) + 2 * _SPARE))}
    with start_postgres(settings.data_dir, options=room) as server:
        yield server.url


def needed(settings: Settings) -> int:
    """Connections of all workers together, and some to spare."""
    return settings.workers * connections_of_a_worker(settings) + _SPARE


def check(settings: Settings, url: str) -> None:
    """Refuses to start what would fail later: locks that cannot be safe there, too little room under load."""
    with Locks.from_url(url, mode="advisory") as locks, locks.try_hold("holdfast.serve"):
        pass
    with psycopg.connect(plain_conninfo(url)) as connection:
        row = connection.execute(_ROOM).fetchone()
    assert row is not None
    room = int(row[0])
    if room < needed(settings):
        for_locks = connections_of_a_worker(settings) - settings.connections
        raise Unsupported(
            f"{settings.workers} workers need up to {needed(settings)} connections (each {settings.pool_size} + "
            f"{settings.max_overflow} for work and {for_locks} for locks and the scheduler; {_SPARE} to spare), but "
            f"the database has room for {room}: raise its max_connections, or lower workers, pool_size or max_overflow"
        )
