"""Stops whose last message has to be read from the transcript: first wait and read, then lock, then look again."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Final

from sqlalchemy import delete, select, text

from ..errors import LockError
from . import effects, inbox, transcript
from .database import Database, is_unavailable
from .processing import Processor
from .tables import Agent, DeferredStop, Event
from .transcript import LastEntry

_log = logging.getLogger("holdfast.agents")

MOST_TRIES: Final = 8
"""Over some 16 seconds. Then the command is completed without its last words, rather than never."""
LOCK_WAIT: Final = 2.0
"""Seconds. Who does not get the lock comes back later: the row stays, and others must not wait for it."""

# Claimed by moving its time ahead: of several processes one has it, and if that one dies it is due again.
_CLAIM: Final = text("""
    update holdfast.deferred_stop d
    set tries = least(d.tries + 1, 100), due_at = now() + interval '0.25 s' * 2 ^ least(d.tries, 4)
    where d.id in (
        select id from holdfast.deferred_stop where due_at <= now() order by due_at limit 20 for update skip locked
    )
    returning d.id, d.agent_id, d.tries
""")


class DeferredStops:
    def __init__(self, database: Database, processor: Processor, transcripts: Path) -> None:
        self._database = database
        self._processor = processor
        self._transcripts = transcripts

    async def work_off(self) -> float | None:
        """Does what is due. Returns in how many seconds the next one is, if there is one."""
        async with self._database.statement() as connection:
            claimed = (await connection.execute(_CLAIM)).all()
        await asyncio.gather(*(self._try(id_, agent_id, tries) for id_, agent_id, tries in claimed))
        async with self._database.statement() as connection:
            pause = text("select extract(epoch from min(due_at) - now())::float8 from holdfast.deferred_stop")
            seconds: float | None = (await connection.execute(pause)).scalar()
        return seconds

    async def _try(self, id_: int, agent_id: int, tries: int) -> None:
        try:
            last = await self._last_entry(agent_id)
            if last.said is not None or tries >= MOST_TRIES:
                await self._conclude(id_, agent_id, last)
        except Exception as error:
            about = {"action": "deferred_stop_postponed", "agent": agent_id}
            if isinstance(error, LockError) or is_unavailable(error):
                _log.warning("a deferred stop has to wait: %s", type(error).__name__, extra=about)
            else:
                _log.exception("a deferred stop failed and will be tried again", extra=about)

    async def _last_entry(self, agent_id: int) -> LastEntry:
        async with self._database.statement() as connection:
            path = (await connection.execute(select(Agent.transcript_path).where(Agent.id == agent_id))).scalar()
        if path is None:
            return LastEntry()
        try:
            return await asyncio.to_thread(transcript.last_entry, path, self._transcripts)
        except (OSError, transcript.Refused) as error:
            _log.warning(
                "a transcript cannot be read: %s", error, extra={"action": "transcript_unread", "agent": agent_id}
            )
            return LastEntry()

    async def _conclude(self, id_: int, agent_id: int, last: LastEntry) -> None:
        async with self._processor.alone_with(agent_id, wait=LOCK_WAIT, note="deferred stop"):
            async with self._database.transaction() as db:
                ledger = await self._processor.ledger(db, agent_id)
                gone = delete(DeferredStop).where(DeferredStop.id == id_).returning(DeferredStop)
                row = (await db.execute(gone)).scalar_one_or_none()
                ledger.agent.model = last.model or ledger.agent.model
                ledger.agent.client_version = last.client_version or ledger.agent.client_version
                ledger.agent.git_branch = last.git_branch or ledger.agent.git_branch
                command = await ledger.open_command()
                if row is None or command is None or command.id != row.command_id:
                    return  # somebody has completed it meanwhile
                event = (await db.execute(select(Event).where(Event.id == row.event_id))).scalar_one()
                # Marked anew, so that those who follow along are told.
                inbox.mark_done(event, f"deferred, then {await effects.conclude(ledger, event, last.said)}")
