"""Taking in one event: stored first, then worked off if that can be done in time; else it is left to the drainers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from enum import StrEnum
from typing import Final, NamedTuple

from ..deadline import Deadline
from ..errors import BackendUnavailable, LockError
from . import inbox
from .database import Database, is_unavailable, notify
from .drainer import Drainer
from .inbox import Stored
from .payload import Report
from .processing import Processor, Waited, ignore

_log = logging.getLogger("holdfast.agents")

STORE_PATIENCE: Final = 2.0
"""Seconds. A database that restarts is waited for this long."""
STORE_PAUSE: Final = 0.1
AT_ONCE: Final = frozenset({"SessionEnd"})
"""All such hooks of a client share 1.5 s: these are answered when they are stored."""


class Outcome(StrEnum):
    PROCESSED = "processed"
    DUPLICATE = "duplicate"
    STORED = "stored"
    """To be worked off later, in its place."""


class Receipt(NamedTuple):
    stored: Stored
    outcome: Outcome


class Reception:
    def __init__(
        self, database: Database, processor: Processor, drainer: Drainer, *, wait: float = 15.0, limit: float = 25.0
    ) -> None:
        self._database = database
        self._processor = processor
        self._drainer = drainer
        self._wait = wait
        self._limit = limit
        self._waiting: set[asyncio.Timeout] = set()
        self._closing = False

    async def take(self, tenant: str, report: Report, *, waited: Waited = ignore) -> Receipt:
        """Raises ``BackendUnavailable`` if the event could not be stored."""
        stored = await self._store(tenant, report)
        if report.name in AT_ONCE and not self._closing:
            self._drainer.call(stored.agent_id)
        elif await self._worked_off(stored, waited):
            return Receipt(stored, Outcome.DUPLICATE if stored.duplicate else Outcome.PROCESSED)
        else:
            await self._leave_to_drainers(stored.agent_id)
        return Receipt(stored, Outcome.STORED)

    def close(self) -> None:
        """Lets go those who wait: what they have brought is stored, and another process can have it."""
        self._closing = True
        for timeout in self._waiting:
            timeout.reschedule(asyncio.get_running_loop().time())

    async def _store(self, tenant: str, report: Report) -> Stored:
        deadline = Deadline.after(STORE_PATIENCE)
        while True:
            try:
                async with self._database.statement() as connection:
                    return await inbox.store(connection, tenant, report)
            except Exception as error:
                if not is_unavailable(error):
                    raise
                if deadline.passed:
                    raise BackendUnavailable("the event could not be stored") from error
            # Again, also if only the answer was lost: the same event is recognised.
            await asyncio.sleep(STORE_PAUSE)

    async def _worked_off(self, stored: Stored, waited: Waited) -> bool:
        if self._closing:
            return False
        try:
            async with self._at_most(self._limit):
                return await self._processor.work_off(
                    stored.agent_id, up_to=stored.number, wait=self._wait, waited=waited
                )
        except (LockError, TimeoutError) as error:
            about = {"action": "hook_postponed", "agent": stored.agent_id, "event": stored.number}
            _log.info("not in time: %s", error or type(error).__name__, extra=about)
            return False

    @asynccontextmanager
    async def _at_most(self, seconds: float) -> AsyncIterator[None]:
        async with asyncio.timeout(seconds) as timeout:
            self._waiting.add(timeout)
            try:
                yield
            finally:
                self._waiting.discard(timeout)

    async def _leave_to_drainers(self, agent_id: int) -> None:
        self._drainer.call(agent_id)
        try:
            async with self._database.statement() as connection:
                await notify(connection, str(agent_id))
        except Exception as error:
            if not is_unavailable(error):
                raise  # else it is found by its age
