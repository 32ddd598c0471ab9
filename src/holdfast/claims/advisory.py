"""``claim``: an advisory lock that ends with the caller's transaction, under the same number as a client's ``hold``."""

from __future__ import annotations

from math import ceil
from typing import Any, Final, overload

from ..deadline import Deadline, seconds
from ..errors import InvalidOption, NotAcquired, Unsupported, WouldDeadlock
from ..keys import Key
from .connections import AsyncConnection, Pending, SyncConnection, carry_out
from .steps import BUSY, DEADLOCK, Step, Steps, in_savepoint, sqlstate

LONGEST_WAIT: Final = 2_147_483.0
"""Seconds; lock_timeout takes milliseconds that fit 32 bits."""


@overload
def claim(conn: SyncConnection, *key: Any, wait: float | None = 0, space: str = "") -> bool: ...
@overload
def claim(conn: AsyncConnection, *key: Any, wait: float | None = 0, space: str = "") -> Pending[bool]: ...
def claim(conn: Any, *key: Any, wait: float | None = 0, space: str = "") -> bool | Pending[bool]:
    """Takes the lock for as long as the transaction of ``conn`` lasts; to be awaited if ``conn`` is async.

    ``wait=0`` tries: True when claimed, False when busy. Any other wait gives True or, when its seconds have passed,
    raises ``NotAcquired``; the transaction is usable after either. The lock cannot be given back early: it ends at
    commit, at rollback, and at a rollback to a savepoint made before it.
    """
    if not isinstance(space, str):
        raise InvalidOption(f"space={space!r}: give a string")
    named = Key.of(*key, space=space)
    return carry_out(conn, _claiming(named, _bounded(wait)))


def _bounded(wait: float | None) -> float:
    limit = seconds("wait", wait)
    if limit is None or limit > LONGEST_WAIT:
        raise InvalidOption(
            f"wait={wait!r}: whoever waits here keeps a transaction open, with all that it has locked; give a limit, "
            f"at most {LONGEST_WAIT:.0f} s"
        )
    return limit


def _claiming(key: Key, wait: float) -> Steps[bool]:
    deadline = Deadline.after(wait)
    arguments, numbers = _arguments(key)
    # The server does not let a try overtake those who wait. On a standby the try is left out, and null comes back.
    tried = yield Step(
        f"select case when not pg_is_in_recovery() then pg_try_advisory_xact_lock({arguments}) end, "
        "current_setting('lock_timeout')",
        numbers,
    )
    ((granted, callers_limit),) = tried.rows
    if granted is None:
        raise Unsupported("this PostgreSQL is a standby: its locks exclude nobody on the primary", key=key)
    if granted or not wait:
        return bool(granted)
    left = deadline.remaining
    if left:
        waiting = _waiting(arguments, numbers, left, callers_limit)
        try:
            return (yield from in_savepoint(waiting))
        except Exception as error:
            if sqlstate(error) == DEADLOCK:
                raise WouldDeadlock(
                    f"{key}: its holder waits for what this transaction has locked; roll it back", key=key
                ) from error
            if sqlstate(error) != BUSY:
                raise
    raise NotAcquired(f"{key} was busy for all of the {wait:g} s that could be waited", key=key) from None


def _waiting(arguments: str, numbers: tuple[int, ...], left: float, callers_limit: str) -> Steps[bool]:
    # Rounded up: 0 would be no limit at all.
    yield _limit(str(ceil(left * 1000)))
    yield Step(f"select pg_advisory_xact_lock({arguments})", numbers)
    # What is set in a savepoint outlives its release; only its rollback takes it back.
    yield _limit(callers_limit)
    return True


def _limit(lock_timeout: str) -> Step:
    return Step("select set_config('lock_timeout', %s, true)", (lock_timeout,))


def _arguments(key: Key) -> tuple[str, tuple[int, ...]]:
    classid, objid = key.pg
    if classid is None:
        return "cast(%s as int8)", (objid,)
    return "cast(%s as int4), cast(%s as int4)", (classid, objid)
