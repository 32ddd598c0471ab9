"""Opening a lock connection, and refusing one on which a lock would not be safe."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import psycopg
from psycopg import pq
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from ...errors import BackendUnavailable, InvalidOption, Unsupported
from .statements import STATEMENTS

_PREPARED: Final = (
    "try_pair", "try_hash", "unlock_pair", "unlock_hash", "try_many", "unlock_many", "wait_pair", "wait_hash",
    "unlock_all", "cancel", "ask_to_evict", "terminate", "locks",
)  # fmt: skip
PREPARED: Final = {name: STATEMENTS[name] for name in _PREPARED}
FENCED: Final = {name: STATEMENTS.get(f"{name}_fenced", statement) for name, statement in PREPARED.items()}
"""The same by name, but a grant brings its fence along."""

_NO_TABLES: Final = ("3F000", "42P01", "42883")
"""No such schema, table, function."""

# Shorter than the server's own (statements.sql), unless the address says otherwise.
_PATIENCE: Final = {"keepalives_idle": 2, "keepalives_interval": 1, "keepalives_count": 2, "tcp_user_timeout": 4000}


class Identity(NamedTuple):
    """One database of one server, however it was reached."""

    system: str
    database: str


class Opened(NamedTuple):
    connection: psycopg.Connection[Any]
    identity: Identity
    pid: int
    """The backend's own; what the driver was told is the pooler's, if there is one."""


def checked_conninfo(url: str, **parameters: Any) -> str:
    """The address with what lock connections need added to it."""
    try:
        given = conninfo_to_dict(url, **parameters)
    except psycopg.ProgrammingError as error:
        problem = _first_line(error).partition('"')[0].rstrip(": ")  # quoted is a part of the address: maybe a secret
    else:
        problem = _misplaced(given)
    if problem:
        raise InvalidOption(f"url: {problem}; write special characters in it as %XX")
    defaults: dict[str, Any] = {**_PATIENCE, "application_name": f"holdfast[{os.getpid()}]", "connect_timeout": 10}
    return make_conninfo("", **{**defaults, **given})


def plain_conninfo(url: str) -> str:
    """For connections that hold no locks, to wherever this URL has its locks: what it says of these is left out."""
    return checked_conninfo(split_options(url)[0])


def split_options(place: str) -> tuple[str, dict[str, Any]]:
    """The address without ``mode=…`` and ``fence=…``, which are ours and would puzzle libpq; and what they say."""
    start, mark, query = place.partition("?")
    ours: dict[str, Any] = {}
    theirs = []
    for part in query.split("&"):
        name, _, value = part.partition("=")
        if name == "mode":
            ours[name] = value
        elif name == "fence":
            ours[name] = {"true": True, "false": False}.get(value.lower(), value)
        else:
            theirs.append(part)
    rest = "&".join(theirs)
    return start + (mark if rest else "") + rest, ours


def open_connection(
    connect: Callable[[], psycopg.Connection[Any]],
    *,
    pooler: str | None,
    listens: bool,
    statements: Mapping[str, bytes] = PREPARED,
) -> Opened:
    """Connects, prepares the session and its statements, and checks that locks are safe there."""
    try:
        connection = connect()
    except psycopg.Error as error:
        raise BackendUnavailable(f"PostgreSQL cannot be reached: {_first_line(error)}") from error
    try:
        connection.autocommit = True
        identity, pid = _identify(connection, pooler)
        connection.execute(STATEMENTS["prepare_session"])
        if listens:
            connection.execute(STATEMENTS["listen"])
        for name, statement in statements.items():
            _prepare(connection.pgconn, name, statement)
    except psycopg.Error as error:
        connection.close()
        raise BackendUnavailable(f"PostgreSQL cannot be used for locks: {_first_line(error)}") from error
    except BaseException:
        connection.close()
        raise
    return Opened(connection, identity, pid)


def _prepare(pg: pq.abc.PGconn, name: str, statement: bytes) -> None:
    result = pg.prepare(name.encode(), statement)
    if result.status == pq.ExecStatus.COMMAND_OK:
        return
    message = result.get_error_message().partition("\n")[0]
    if (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode() in _NO_TABLES:
        raise BackendUnavailable(f"Holdfast's tables are not in this database: run `holdfast db upgrade` ({message})")
    raise BackendUnavailable(f"PostgreSQL refused a statement: {message}")


def _identify(connection: psycopg.Connection[Any], pooler: str | None) -> tuple[Identity, int]:
    row = connection.execute(STATEMENTS["identify"]).fetchone()
    assert row is not None
    pid, standby, system, database = row
    if standby:
        raise Unsupported(
            "this PostgreSQL is a standby: its locks exclude nobody on the primary; give the primary's address "
            "(target_session_attrs=read-write picks it)"
        )
    if pid != connection.info.backend_pid and pooler != "session":
        raise Unsupported(
            "there is a connection pooler in between (the backend is not the one that was connected to): in "
            "transaction mode two clients would hold one lock; give PostgreSQL's own address, or pooler='session' if "
            "it pools sessions"
        )
    return Identity(str(system), str(database)), int(pid)


def _misplaced(given: dict[str, Any]) -> str:
    """What is wrong if part of a password with an @ or / in it has become the host or port, which errors would show."""
    if "@" in str(given.get("host") or "")[1:]:  # in front it marks an abstract socket
        return "there is more than one @"
    port = str(given.get("port") or "")
    return "" if port.replace(",", "").isdecimal() or not port else "the port is not a number"


def _first_line(error: BaseException) -> str:
    """libpq's message may go on for long, and repeat the password's place; its first line says what happened."""
    return str(error).partition("\n")[0]
