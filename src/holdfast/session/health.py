"""Whether session locks work: by taking one."""

from __future__ import annotations

import asyncio
import logging
from secrets import token_hex
from typing import Any, Final

from .. import fork
from ..errors import LockError
from ..keys import Key
from .lock import SessionLock

_LEASE: Final = 5.0
"""Seconds that the lock of a prober that died is left: nobody else asks for it."""

_log = logging.getLogger("holdfast")
_late: set[asyncio.Task[Any]] = set()  # the loop itself holds tasks weakly
_configured: SessionLock | None = None
_name = ""


async def check_session_lock_health(lock: SessionLock | None = None, *, timeout: float = 1.0) -> bool:
    """Takes a lock, looks at it, and gives it back. False if that has not come to an end in ``timeout`` seconds.

    The lock is this process's own, so that neither other probers nor what one left that died can be taken for an
    outage. Without ``lock``, the session locks that are configured are asked.
    """
    task = asyncio.ensure_future(_probe(lock or _default(), timeout))
    try:
        done, _ = await asyncio.wait({task}, timeout=timeout)
    except asyncio.CancelledError:
        task.cancel()
        raise
    finally:
        if not task.done():  # a release must come to its end, for as long as that takes
            _late.add(task)
            task.add_done_callback(_late.discard)
    if not done:
        _log.warning("action=session_lock_unhealthy reason=no answer in %g s", timeout)
        return False
    return task.result()


async def _probe(lock: SessionLock, timeout: float) -> bool:
    key = Key.prefixed(lock.key_prefix, f"health:{_own_name()}")
    try:
        async with lock.locks.hold(key, wait=timeout, ttl=_LEASE, note="health check") as held:
            found = await lock.locks.holder(key)
            if found is not None and found.fence == held.fence:
                return True
            _log.warning("action=session_lock_unhealthy reason=a lock that was taken is not there")
    except LockError as error:
        _log.warning("action=session_lock_unhealthy reason=%s", error)
    return False


def _default() -> SessionLock:
    global _configured
    if _configured is None:
        _configured = SessionLock()
    return _configured


def _own_name() -> str:
    global _name
    if not _name:
        _name = token_hex(8)
    return _name


def _start_afresh() -> None:
    global _name
    _name = ""
    _late.clear()


fork.in_child(_start_afresh)
