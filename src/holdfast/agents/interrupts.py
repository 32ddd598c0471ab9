"""Interrupts: the client tells nobody when its user breaks off or refuses something, but notes it in the transcript.

Here only the looking is done. What is found goes to the inbox like any other event: once, whoever finds it, and worked
off in its place under the agent's lock.
"""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import Final

from sqlalchemy import Row, text

from . import inbox, payload, transcript
from .database import Database
from .effects import INTERRUPT

_log = logging.getLogger("holdfast.agents")

QUIET_SECONDS: Final = 1.5
"""An agent that was heard of just now is not looked at: its transcript may be behind what it reports."""

# Those of whom nothing was heard for a day have gone without a word.
_QUIET: Final = text("""
    select c.id as command_id, a.id as agent_id, a.tenant, a.session_id, a.transcript_path
    from holdfast.command c join holdfast.agent a on a.id = c.agent_id
    where c.state <> 'COMPLETE' and c.waits_for is distinct from 'prompt'
        and a.ended_at is null and a.transcript_path is not null
        and a.last_seen_at between now() - interval '1 day' and now() - make_interval(secs => :quiet)
    order by a.last_seen_at desc limit 200
""")


class Interrupts:
    def __init__(self, database: Database, transcripts: Path, *, quiet: float = QUIET_SECONDS) -> None:
        self._database = database
        self._transcripts = transcripts
        self._quiet = quiet
        self._seen: dict[int, tuple[int, int]] = {}
        """Each open command's transcript as it was when it was read last: what has not changed is not read again."""

    async def look(self) -> list[int]:
        """Finds new ones and stores them. Returns the agents that have something in their inbox now."""
        async with self._database.statement() as connection:
            quiet = (await connection.execute(_QUIET, {"quiet": self._quiet})).all()
        self._seen = {row.command_id: self._seen[row.command_id] for row in quiet if row.command_id in self._seen}
        changed = await asyncio.to_thread(lambda: [(row, *read) for row in quiet if (read := self._read(row))])
        told = []
        for row, state, interrupt in changed:
            if interrupt is not None and await self._store(row, interrupt):
                told.append(row.agent_id)
            self._seen[row.command_id] = state  # not before: what could not be stored has to be found again
        return told

    def _read(self, row: Row[tuple[object, ...]]) -> tuple[tuple[int, int], transcript.Interrupt | None] | None:
        """Its state and what is at its end; None if there is nothing new, or nothing that we may read."""
        try:
            state = transcript.state_of(row.transcript_path, self._transcripts)
            if self._seen.get(row.command_id) == state:
                return None
            return state, transcript.interrupt_at_the_end(row.transcript_path, self._transcripts)
        except (OSError, transcript.Refused):
            return None

    async def _store(self, row: Row[tuple[object, ...]], interrupt: transcript.Interrupt) -> bool:
        told = {
            "session_id": row.session_id,
            "hook_event_name": INTERRUPT,
            "prompt_id": interrupt.prompt_id,
            "text": interrupt.text,
        }
        try:
            report = payload.read(json.dumps(told).encode(), delivery_id=f"interrupt-{interrupt.id}")
        except payload.Malformed as error:
            _log.warning("an odd transcript: %s", error, extra={"action": "transcript_odd", "agent": row.agent_id})
            return False
        async with self._database.statement() as connection:
            return not (await inbox.store(connection, row.tenant, report)).duplicate
