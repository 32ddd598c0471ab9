"""What a conversation's lock is called: ``sesslock:{tenant}:{agent}:{customer}:{channel}``, on the server too."""

from __future__ import annotations

from functools import lru_cache
from typing import Final
from uuid import UUID

from ..errors import InvalidKey
from ..keys import Key, checked_prefix, escape
from ..settings import SessionLockSettings, current

_PARTS: Final = 4
_OTHER_CHANNEL: Final = "*"


def build_session_key(
    tenant_id: UUID | str | int, agent_id: UUID | str | int, customer_id: UUID | str | int, channel: str
) -> str:
    """The conversation: ``{tenant}:{agent}:{customer}:{channel}``. A ``:`` inside a part is written ``%3A``."""
    return ":".join(
        _part(name, value)
        for name, value in (
            ("tenant_id", tenant_id), ("agent_id", agent_id), ("customer_id", customer_id), ("channel", channel)
        )
    )  # fmt: skip


def build_lock_key(
    tenant_id: UUID | str | int,
    agent_id: UUID | str | int,
    customer_id: UUID | str | int,
    channel: str,
    *,
    prefix: str | None = None,
) -> str:
    """The name of the conversation's lock: the configured prefix, ``:``, and the session key."""
    if prefix is None:
        prefix = current(SessionLockSettings).key_prefix
    return f"{checked_prefix(prefix)}:{build_session_key(tenant_id, agent_id, customer_id, channel)}"


def lock_key(session_key: str, prefix: str) -> Key:
    """The lock of a session key, or of a lock key: what has the prefix already is not given it again."""
    if not isinstance(session_key, str):
        raise InvalidKey(f"{session_key!r} is no session key; build_session_key() makes one")
    return _lock_key(session_key, prefix, current(SessionLockSettings).key_prefix)


@lru_cache(maxsize=4096)
def _lock_key(session_key: str, prefix: str, configured: str) -> Key:
    first, _, rest = session_key.partition(":")
    parts = session_key.count(":") + 1
    if first == prefix and parts == _PARTS:
        raise InvalidKey(
            f"{session_key!r} may be the session key of a tenant {first!r}, or a lock key that lacks a part; give what "
            "build_lock_key() makes"
        )
    if first == prefix and rest:
        return Key.prefixed(prefix, rest)
    if parts == _PARTS + 1 and first in (SessionLockSettings.key_prefix, configured):
        raise InvalidKey(
            f"{session_key!r} has the prefix {first!r}, and this lock's is {prefix!r}; two names, two locks"
        )
    return Key.prefixed(prefix, session_key)


def pattern_of(key: Key, channels: frozenset[str]) -> str:
    """The shape of a session's key, for metrics: its channel if that is a known one, and never an id."""
    *ids, channel = (key.name or "").split(":")
    if len(ids) != _PARTS - 1:
        return "*"
    return f"*:*:*:{channel if channel in channels else _OTHER_CHANNEL}"


def _part(name: str, value: object) -> str:
    # None, most of all: its text would join all conversations that lack this part.
    if isinstance(value, bool) or not isinstance(value, str | int | UUID):
        raise InvalidKey(f"{name}={value!r}: give a string, a number or a UUID")
    # By the type's own: what an enum of strings looks like as text depends on the version of Python.
    plain = str.__str__(value) if isinstance(value, str) else value if isinstance(value, UUID) else int(value)
    text = escape(str(plain))
    if not text:
        raise InvalidKey(f"{name} is empty")
    return text
