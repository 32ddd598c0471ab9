"""``SessionLock``: one turn at a time in each conversation, on Redis or on the lease table of PostgreSQL."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass, field
from socket import gethostname
from types import TracebackType
from typing import Any

from .._async.body import OnLost
from .._async.held import AsyncHeld
from .._async.locks import AsyncLocks
from ..deadline import seconds
from ..errors import InvalidOption, LockLost, NotHeld
from ..keys import Key, checked_prefix
from ..options import Unavailable, proceeds
from ..settings import SessionLockSettings, current
from .blocks import SessionAcquire, SessionAttach, SessionHold
from .errors import MutexAcquisitionFailed
from .keys import lock_key

_log = logging.getLogger("holdfast")


@dataclass(frozen=True)
class DetachedLock:
    """A lock that is held with nobody in charge. Plain values: keep them in a workflow's state."""

    key: str
    """The lock's name."""
    token: str = field(repr=False)
    """By this the lock is extended, released or taken up, anywhere. A secret."""
    fence: int
    """Grows with every grant. Store it with what you write; refuse writes with a lower one."""


class SessionLock:
    """Locks of conversations. Any number of tasks, and of loops, may use one object; it is cheap to make another.

    ``redis`` is the application's client (its address and credentials are used, its pool is not), a URL, or an
    ``AsyncLocks``; without it, the URL that is configured. What is left out is as configured (``holdfast.settings``):
    ``lock_timeout`` 30, ``blocking_timeout`` 5.0 and ``key_prefix`` "sesslock" unless that says otherwise.

    Session keys are what ``build_session_key`` makes, or ``build_lock_key``: both name the same lock.
    """

    def __init__(
        self,
        redis: Any = None,
        lock_timeout: float | None = None,
        blocking_timeout: float | None = None,
        *,
        key_prefix: str | None = None,
        unavailable: Unavailable = "refuse",
    ) -> None:
        settings = current(SessionLockSettings)
        self.lock_timeout = settings.timeout_seconds if lock_timeout is None else _lease(lock_timeout)
        self.blocking_timeout = (
            settings.blocking_timeout_seconds if blocking_timeout is None else _wait(blocking_timeout)
        )
        self.key_prefix = settings.key_prefix if key_prefix is None else checked_prefix(key_prefix)
        proceeds(unavailable)
        self.unavailable = unavailable
        self.channels = frozenset(settings.channels)
        self._owns = not isinstance(redis, AsyncLocks)
        self.locks = _locks_of(settings.url if redis is None else redis)
        self.held: dict[Key, AsyncHeld] = {}
        """What the blocks of this object hold."""

    # For a block

    def acquire(
        self,
        session_key: str,
        blocking_timeout: float | None = None,
        *,
        owner: str | None = None,
        note: str | None = None,
        on_lost: OnLost | None = None,
        unavailable: Unavailable | None = None,
    ) -> SessionAcquire:
        """Holds the lock for an ``async with``, which gets the handle; None when ``blocking_timeout`` seconds have
        passed. 0 tries once.

        The lease is renewed while the block runs. A loss cancels the block, and is raised when it ends. The same
        ``owner`` gets its own lock back at once. ``unavailable="proceed"`` runs the block also when the server cannot
        be reached, without a lock: it is logged, counted, and ``held.protected`` is False.
        """
        wait = self.blocking_timeout if blocking_timeout is None else _wait(blocking_timeout)
        block = self.locks.hold(
            self.key(session_key),
            wait=wait,
            ttl=self.lock_timeout,
            owner=owner,
            note=note,
            on_lost=on_lost,
            unavailable=unavailable or self.unavailable,
        )
        return SessionAcquire(self, block)

    def hold(self, session_key: str, blocking_timeout: float | None = None, **options: Any) -> SessionHold:
        """Like ``acquire``, but raises ``SessionBusyError`` when the time has passed."""
        return SessionHold(self.acquire(session_key, blocking_timeout, **options), session_key)

    # Across steps and processes

    async def acquire_detached(
        self,
        session_key: str,
        blocking_timeout: float | None = None,
        *,
        owner: str,
        lock_timeout: float | None = None,
        note: str | None = None,
    ) -> DetachedLock:
        """Takes the lock and leaves it held for ``lock_timeout`` seconds, for other steps, here or in other processes.

        ``owner`` is who it is held for, such as the turn's id: a step that is tried again gets its own lock back at
        once, with another token and a higher fence. ``MutexAcquisitionFailed`` when it was busy.
        """
        wait = self.blocking_timeout if blocking_timeout is None else _wait(blocking_timeout)
        ttl = self.lock_timeout if lock_timeout is None else _lease(lock_timeout)
        key = self.key(session_key)
        acquire = SessionAcquire(self, self.locks.hold(key, wait=wait, ttl=ttl, owner=owner, note=note))
        async with acquire as held:
            if held is None:
                raise MutexAcquisitionFailed(session_key, key=key)
            fence = held.fence
            return DetachedLock(key.text, await held.detach(), fence)

    def attach(self, detached: DetachedLock | str, *, lock_timeout: float | None = None) -> SessionAttach:
        """Takes a detached lock up again for an ``async with``: renewed while it runs, released when it ends, unless
        ``held.detach()`` leaves it held once more. ``NotHeld`` if the token has no lock any more."""
        ttl = self.lock_timeout if lock_timeout is None else _lease(lock_timeout)
        return SessionAttach(self, self.locks.attach(_token(detached), ttl=ttl))

    async def release(self, detached: DetachedLock | str) -> bool:
        """Releases a detached lock. False if it was not the token's any more, and then nothing was done."""
        return await self.locks.release_detached(_token(detached))

    async def extend(
        self, session_key: str, additional_time: float = 30, *, token: DetachedLock | str | None = None
    ) -> bool:
        """Sets what remains of the lease to ``additional_time`` seconds, and never adds up. False if it is not ours.

        Ours is what a block of this object holds, or what the ``token`` of a detached lock opens, from any process.
        """
        ttl = _lease(additional_time, "additional_time")
        key = self.key(session_key)
        if token is not None:
            return await self.locks.extend_detached(_token(token, key), ttl)
        held = self.held.get(key)
        if held is None or not held.protected:
            return False
        try:
            await held.extend(ttl)
        except (LockLost, NotHeld):
            return False
        return True

    # For operators

    async def is_locked(self, session_key: str) -> bool:
        """Whether anybody holds the lock."""
        return await self.locks.holder(self.key(session_key)) is not None

    async def force_release(self, session_key: str, *, by: str | None = None, reason: str | None = None) -> bool:
        """Takes the lock from whoever holds it, who is told; the next in the queue gets it. False if it was free.

        Two turns may be at work for a moment: for cleaning up after failures. Logged, with who did it and to whom.
        """
        key = self.key(session_key)
        holder = await self.locks.holder(key)
        released = bool(await self.locks.evict(key, force=True))
        _log.warning(
            "action=session_lock_forced key=%s released=%s by=%r reason=%r holder=%r",
            key,
            released,
            by or f"pid {os.getpid()} on {gethostname()}",
            reason,
            None if holder is None else f"{holder.owner} on {holder.host} pid {holder.pid} fence {holder.fence}",
        )
        return released

    # The object

    def key(self, session_key: str) -> Key:
        """The lock's own name, for whatever session key or lock key names it."""
        return self.locks._client.key((lock_key(session_key, self.key_prefix),))

    async def close(self) -> None:
        """Ends what this object opened; an ``AsyncLocks`` that it was given stays open."""
        if self._owns:
            await self.locks.close()

    async def __aenter__(self) -> SessionLock:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<SessionLock {self.key_prefix}:… at {self.locks!r}>"


def _locks_of(redis: Any) -> AsyncLocks:
    if redis == "":
        raise InvalidOption(
            "SessionLock: give a redis.asyncio client, a URL or an AsyncLocks, or configure session.lock.url "
            "(HOLDFAST_SESSION_LOCK_URL)"
        )
    if isinstance(redis, AsyncLocks):
        locks = redis
    elif isinstance(redis, str):
        locks = AsyncLocks.from_url(redis)
    elif hasattr(redis, "connection_pool"):
        from ..engines.redis import RedisEngine

        locks = AsyncLocks(RedisEngine.from_client(redis))
    else:
        raise InvalidOption(f"SessionLock: {type(redis).__name__} is no redis.asyncio client, no URL and no AsyncLocks")
    can = locks.capabilities
    if not (can.expiring and can.detachable and can.fenced):
        raise locks._client.engine.unsupported(
            "SessionLock", "it needs leases; use redis://… or postgresql://…?mode=lease", None
        )
    return locks


def _lease(value: float, option: str = "lock_timeout") -> float:
    checked = seconds(option, value)
    if not checked:
        raise InvalidOption(f"{option}={value!r}: a lease lasts more than 0 seconds, and ends")
    return checked


def _wait(value: float) -> float | None:
    return seconds("blocking_timeout", value)


def _token(detached: DetachedLock | str, key: Key | None = None) -> str:
    from ..token import Token

    token = detached.token if isinstance(detached, DetachedLock) else detached
    found = Token.parse(token).key
    if key is not None and found.text != key.text:
        raise InvalidOption(f"token: it is of {found}, not of {key}", key=key)
    return token
