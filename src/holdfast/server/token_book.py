"""The tokens that are known, for those who make and revoke them. Tokens themselves are nowhere, only their digests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any, Final, NamedTuple

import psycopg

from .. import schema
from ..engines.postgres.connect import plain_conninfo
from ..errors import BackendUnavailable, InvalidOption, LockError, Unsupported
from ..hooks.token_file import new_token
from .tokens import ADMIN, HOOK, READ, REMEMBERED_FOR, digest

KNOWN_FOR: Final = REMEMBERED_FOR
"""Seconds that a running server still takes a token which was revoked."""
SCOPES: Final = (HOOK, READ, ADMIN)
_LONGEST_NAME: Final = 100
_SHORTEST_ID: Final = 12
"""Hexadecimal digits of its digest, by which a token without a name can be told."""

_GOOD: Final = "revoked_at is null and (expires_at is null or expires_at > now())"


class Entry(NamedTuple):
    id: str
    name: str | None
    note: str | None
    tenant: str
    scopes: list[str]
    created_at: datetime
    expires_at: datetime | None

    def __str__(self) -> str:
        until = f", until {self.expires_at:%Y-%m-%d %H:%M}" if self.expires_at else ""
        who = self.name or f"({self.note})"
        made = f"{self.created_at:%Y-%m-%d %H:%M}"
        return f"{self.id}  {who:<32}  {self.tenant:<12}  {','.join(self.scopes):<16}  made {made}{until}"


class TokenBook:
    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._db = connection

    def add(self, name: str, scopes: Iterable[str], tenant: str) -> str:
        """Makes a token and returns it, which nobody can do again."""
        wanted = set(scopes)
        if not wanted or wanted - set(SCOPES):
            raise InvalidOption(f"scope: give some of {', '.join(SCOPES)}, with commas between")
        for what, text in (("name", name), ("tenant", tenant)):
            if not (0 < len(text) <= _LONGEST_NAME and text.isprintable() and text == text.strip()):
                raise InvalidOption(f"{what}: give 1 to {_LONGEST_NAME} characters that can be seen")
        token = new_token()
        values = (digest(token), tenant, sorted(wanted), name)
        made = self._db.execute(
            "insert into holdfast.token (digest, tenant, scopes, name) values (%s, %s, %s, %s)"
            " on conflict (name) where revoked_at is null do nothing returning 1",
            values,
        )
        if made.fetchone() is None:
            raise LockError(f"there is a token of that name already: {name}")
        return token

    def entries(self) -> list[Entry]:
        rows = self._db.execute(
            "select left(encode(digest, 'hex'), %s), name, note, tenant, scopes, created_at, expires_at"
            f" from holdfast.token where {_GOOD} order by created_at, digest",
            (_SHORTEST_ID,),
        )
        return [Entry(*row) for row in rows]

    def revoke(self, which: str) -> str:
        """By name, else by id. Returns its id."""
        if not which.isprintable():  # which no name is; and half of a character could not even be asked for
            raise LockError(f"there is no token of that name or id: {which!a}")
        end = f"update holdfast.token set revoked_at = now() where {_GOOD} and"
        shown = "returning left(encode(digest, 'hex'), %s)"
        gone = self._db.execute(f"{end} name = %s {shown}", (which, _SHORTEST_ID)).fetchone()
        if gone is None and len(which) >= _SHORTEST_ID:
            starts = f"{end} starts_with(encode(digest, 'hex'), lower(%s)) {shown}"
            gone = self._db.execute(starts, (which, _SHORTEST_ID)).fetchone()
        if gone is None:
            raise LockError(f"there is no token of that name or id: {which}")
        return str(gone[0])


@contextmanager
def opened(url: str) -> Iterator[TokenBook]:
    """What is done in the block is durable when it ends. Changes no schema: that is for whoever runs the server."""
    if not schema.standing(url).up_to_date:
        raise Unsupported("the database's tables are not up to date: start the server, or run holdfast db upgrade")
    try:
        with psycopg.connect(plain_conninfo(url)) as connection:
            yield TokenBook(connection)
    except psycopg.Error as error:  # it cannot be reached, or this user may not
        raise BackendUnavailable(f"PostgreSQL: {str(error).partition(chr(10))[0]}") from None
