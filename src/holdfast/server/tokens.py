"""Who may call: bearer tokens with scopes, each of one tenant. The database knows their digests only."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable
from typing import Final, NamedTuple

import psycopg
from sqlalchemy import func, or_, select

from ..agents.database import Database
from ..agents.tables import Token
from ..engines.postgres.connect import plain_conninfo
from ..hooks.token_file import new_token

HOOK: Final = "hook"
READ: Final = "read"
ADMIN: Final = "admin"
PAGE: Final = "page"
"""Not for calls: to be exchanged for a browser's cookie, once."""

CODE_SECONDS: Final = 3600.0
REMEMBERED_FOR: Final = 5.0
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
        if grant is not None and time.monotonic() - at < REMEMBERED_FOR:
            return grant
        query = select(Token.tenant, Token.scopes).where(
            Token.digest == key,
            Token.revoked_at.is_(None),
            or_(Token.expires_at.is_(None), Token.expires_at > func.now()),
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


def register(
    url: str, token: str, tenant: str, scopes: Iterable[str], note: str, *, seconds: float | None = None
) -> bool:
    """Makes a token known to the database. Whether it is good now: one that was revoked stays so."""
    with psycopg.connect(plain_conninfo(url)) as connection:
        connection.execute("delete from holdfast.token where expires_at < now()")
        known = connection.execute(
            "insert into holdfast.token as t (digest, tenant, scopes, note, expires_at) "
            "values (%s, %s, %s, %s, now() + make_interval(secs => %s)) "
            "on conflict (digest) do update set tenant = excluded.tenant, scopes = excluded.scopes "
            "where t.revoked_at is null returning 1",
            (digest(token), tenant, sorted(scopes), note, seconds),
        )
        return known.fetchone() is not None


def new_page_code(url: str, tenant: str) -> str:
    """A code that lets one browser in, within the hour."""
    code = new_token()
    register(url, code, tenant, (PAGE,), "lets a browser in, once", seconds=CODE_SECONDS)
    return code
