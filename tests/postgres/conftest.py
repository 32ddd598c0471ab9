"""A server of its own for tests that restart it or change its roles, and eyes to see what is left in it."""

import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from holdfast.testing import PATIENCE


@pytest.fixture
def url(holdfast_postgres_url: str) -> str:
    return holdfast_postgres_url


@pytest.fixture
def db(url: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection beside the engine's own."""
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


class Server:
    def __init__(self, db: psycopg.Connection[Any]) -> None:
        self._db = db

    def advisory_locks(self, key: int | None = None) -> list[tuple[int, bool]]:
        """Process id and granted of every advisory lock (of two-int form with this object id)."""
        rows = self._db.execute(
            "select pid, granted from pg_locks where locktype = 'advisory' and (%s::int8 is null or objid = %s::int8)",
            (key, key),
        ).fetchall()
        return [(pid, granted) for pid, granted in rows]

    def waiting(self, key: int) -> list[int]:
        return [pid for pid, granted in self.advisory_locks(key) if not granted]

    def holder(self, key: int) -> int:
        (pid,) = [pid for pid, granted in self.advisory_locks(key) if granted]
        return pid

    def terminate(self, pid: int) -> None:
        self._db.execute("select pg_terminate_backend(%s)", (pid,))

    def cancel(self, pid: int) -> None:
        self._db.execute("select pg_cancel_backend(%s)", (pid,))

    def connections(self, application: str = "holdfast%") -> int:
        row = self._db.execute(
            "select count(*) from pg_stat_activity where application_name like %s", (application,)
        ).fetchone()
        assert row is not None
        return int(row[0])


@pytest.fixture
def server(db: psycopg.Connection[Any]) -> Server:
    return Server(db)


@pytest.fixture(autouse=True)
def _nothing_left(server: Server) -> Iterator[None]:
    yield
    wait_until(lambda: not server.advisory_locks(), "an advisory lock was left behind")


@pytest.fixture
def own_server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """A server that the test may restart. Its parameter, if there is one, are settings of the server."""
    from holdfast.embedded import start_postgres

    fast = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
    given = dict(getattr(request, "param", {}))
    if "listen_addresses" in given:
        given["port"] = str(free_port())
    with start_postgres(tmp_path / "server", options=fast | given) as started:
        yield started


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def wait_until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.002)
