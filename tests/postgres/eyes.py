"""Eyes to see what is left in a server."""

import socket
from secrets import randbelow
from typing import Any

import psycopg

from waiting import wait_until  # noqa: F401  for the tests that look through this


class Server:
    def __init__(self, db: psycopg.Connection[Any]) -> None:
        self._db = db

    def advisory_locks(self, key: int | None = None) -> list[tuple[int, bool]]:
        """Process id and granted of every advisory lock (of two-int form with this object id).

        But for those by which the mailboxes of the lease table show that they live.
        """
        rows = self._db.execute(
            "select pid, granted from pg_locks where locktype = 'advisory' and (%s::int8 is null or objid = %s::int8) "
            "and not (classid = 97 and objsubid = 2)",
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


def place_to_listen() -> tuple[str, int]:
    """An address of this machine's own network, and a port. On 127.0.0.1, where everybody listens, a port that was free
    may be another's by the time that a server takes it."""
    address = f"127.{1 + randbelow(254)}.{randbelow(256)}.{1 + randbelow(254)}"
    with socket.create_server((address, 0)) as listener:
        return address, int(listener.getsockname()[1])
