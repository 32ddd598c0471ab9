"""Working off an agent's inbox: in order of arrival, under the agent's lock, one transaction for each event."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from collections.abc import Set as AbstractSet
from contextlib import AsyncExitStack, asynccontextmanager
from enum import Enum
from typing import Final

from sqlalchemy.ext.asyncio import AsyncSession

from .._async.locks import AsyncLocks
from ..errors import BackendUnavailable
from ..keys import LockNamespace
from . import effects, inbox
from .database import Database, is_unavailable
from .ledger import Ledger
from .outbox import Kind

_log = logging.getLogger("holdfast.agents")

KEPT_FREE: Final = 5
"""Connections that processing leaves for storing, and for those who only look."""

Waited = Callable[[float], None]
"""Is told how many seconds the agent's lock was waited for, whether it was had then or not."""


def ignore(seconds: float) -> None: ...


class _Next(Enum):
    WORKED = "an event was worked off, or set aside"
    PAUSED = "the first one has failed and is not due again yet"
    EMPTY = "nothing is left"


class Processor:
    """What a request and a drainer do alike."""

    def __init__(
        self, database: Database, locks: AsyncLocks, *, connections: int = 25, tells: AbstractSet[Kind] = frozenset()
    ) -> None:
        self._database = database
        self._locks = locks
        self._tells = tells
        self._slots = asyncio.Semaphore(max(1, connections - KEPT_FREE))

    @asynccontextmanager
    async def alone_with(
        self, agent_id: int, *, wait: float, note: str, waited: Waited = ignore
    ) -> AsyncIterator[None]:
        """The agent's lock first; then a place at a connection; only then is anything read."""
        async with AsyncExitStack() as taken:
            began = time.monotonic()
            try:
                await taken.enter_async_context(self._locks.hold(LockNamespace.AGENT, agent_id, wait=wait, note=note))
            finally:
                waited(time.monotonic() - began)
            await taken.enter_async_context(self._slots)
            yield

    async def ledger(self, db: AsyncSession, agent_id: int) -> Ledger:
        return await Ledger.open(db, agent_id, tells=self._tells)

    async def work_off(
        self, agent_id: int, *, up_to: int | None = None, wait: float, note: str = "hook", waited: Waited = ignore
    ) -> bool:
        """Works off what came up to number ``up_to``, whoever brought it. Whether all of that is done now.

        Raises ``LockError`` if the lock or the database cannot be had; the inbox stays as it is then.
        """
        async with self.alone_with(agent_id, wait=wait, note=note, waited=waited):
            while (outcome := await self._next(agent_id, up_to)) is _Next.WORKED:
                pass
        return outcome is _Next.EMPTY

    async def _next(self, agent_id: int, up_to: int | None) -> _Next:
        number: int | None = None  # of the event at hand; its row is no use after a rollback
        try:
            async with self._database.transaction() as db:
                ledger = await self.ledger(db, agent_id)
                event = await inbox.next_pending(db, agent_id, up_to)
                if event is None:
                    return _Next.EMPTY
                if event.retry_at is not None and event.retry_at > ledger.now:
                    return _Next.PAUSED
                number = event.number
                inbox.mark_done(event, await effects.apply(ledger, event))
        except Exception as error:
            if number is None or is_unavailable(error):
                raise _unavailable(error) from error
            return await self._failed(agent_id, number, error)
        return _Next.EMPTY if number == up_to else _Next.WORKED

    async def _failed(self, agent_id: int, number: int, error: Exception) -> _Next:
        try:
            async with self._database.transaction() as db:
                await self.ledger(db, agent_id)
                event = await inbox.next_pending(db, agent_id, number)
                if event is None or event.number != number:  # somebody else was quicker
                    return _Next.WORKED
                inbox.mark_failed(event, error)
                failures, set_aside = event.failures, event.status == "set_aside"
        except Exception as trouble:
            raise _unavailable(trouble) from trouble
        about = {"action": "event_failed", "agent": agent_id, "event": number, "failures": failures}
        if set_aside:
            _log.error("an event was set aside", exc_info=error, extra=about | {"action": "event_set_aside"})
            return _Next.WORKED
        _log.warning("an event failed and will be tried again", exc_info=error, extra=about)
        return _Next.PAUSED


def _unavailable(error: Exception) -> Exception:
    if not is_unavailable(error):
        return error
    return BackendUnavailable(f"the database cannot be used: {type(error).__name__}")
