"""Who may call: bearer tokens with scopes, each of one tenant. The database knows their digests only."""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

import psycopg
from sqlalchemy import func, or_, select

from ..agents.database import Database
from ..agents.tables import Token
from ..errors import LockError

HOOK: Final = "hook"
READ: Final = "read"
ADMIN: Final = "admin"
PAGE: Final = "page"
"""Not for calls: to be exchanged for a browser's cookie, once."""

_REMEMBERED_FOR: Final = 5.0
_REMEMBERED: Final = 1000


class Grant(NamedTuple):
    tenant: str
    scopes: frozenset[str]


class Tokens:
    """Looks tokens up. What was found is remembered for some seconds, and so a revoked one is good that long."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._remembered: dict[bytes, tuple[float, Grant]] = {}

    async def grant(self, token: str) -> Grant | None:
        key = digest(token)
        at, grant = self._remembered.get(key, (0.0, None))
        if grant is not None and time.monotonic() - at < _REMEMBERED_FOR:
            return grant
        query = select(Token.tenant, Token.scopes).where(
            Token.digest == key, or_(Token.expires_at.is_(None), Token.expires_at > func.now())
        )
        async with self._database.statement() as connection:
            row = (await connection.execute(query)).one_or_none()
        if row is None:
            self._remembered.pop(key, None)
            return None
        if len(self._remembered) >= _REMEMBERED:
            self._remembered.clear()
        grant = Grant(row[0], frozenset(row[1]))
        self._remembered[key] = (time.monotonic(), grant)
        return grant


def digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "replace")).digest()


def new_token() -> str:
    return f"hf_{secrets.token_urlsafe(32)}"


def token_in(path: Path) -> str:
    """The token that is kept in this file; made by whoever is the first to ask."""
    try:
        return _read(path)
    except FileNotFoundError:
        pass
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    file = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(file, "w") as writing:
            writing.write(new_token() + "\n")
        try:
            os.link(beside, path)  # whole, or not at all; and never over another's
        except FileExistsError:
            pass
    finally:
        beside.unlink()
    return _read(path)


def _read(path: Path) -> str:
    with open(path) as file:
        if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
            raise LockError(f"{path} can be read by others: chmod 600 it, or delete it to have a new one made")
        token = file.read().strip()
    if len(token) < 20:
        raise LockError(f"{path} holds no token: delete it to have one made")
    return token


def register(
    url: str, token: str, tenant: str, scopes: Iterable[str], note: str, *, seconds: float | None = None
) -> None:
    """Makes a token known to the database."""
    with psycopg.connect(url) as connection:
        connection.execute("delete from holdfast.token where expires_at < now()")
        connection.execute(
            "insert into holdfast.token (digest, tenant, scopes, note, expires_at) "
            "values (%s, %s, %s, %s, now() + make_interval(secs => %s)) "
            "on conflict (digest) do update set tenant = excluded.tenant, scopes = excluded.scopes",
            (digest(token), tenant, sorted(scopes), note, seconds),
        )
