"""What a server consists of, without the server: for tests of the agents' own code."""

import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from holdfast import AsyncLocks
from holdfast.agents import inbox, payload
from holdfast.agents.database import Database
from holdfast.agents.deferred import DeferredStops
from holdfast.agents.drainer import Drainer
from holdfast.agents.inbox import Stored
from holdfast.agents.interrupts import Interrupts
from holdfast.agents.outbox import Kind
from holdfast.agents.processing import Processor

GOLDEN = Path(__file__).parent.parent / "golden"
RECORDED = [json.loads(line) for line in (GOLDEN / "hook-payloads.jsonl").read_text().splitlines()]
"""What a real client sent in one session: SessionStart, UserPromptSubmit, PreToolUse, PostToolUse, Stop, SessionEnd."""


class Crew:
    def __init__(self, url: str, transcripts: Path, tells: Iterable[Kind]) -> None:
        self.database = Database(url)
        self.locks = AsyncLocks.from_url(url)
        self.processor = Processor(self.database, self.locks, tells=frozenset(tells))
        self.deferred = DeferredStops(self.database, self.processor, transcripts)
        self.interrupts = Interrupts(self.database, transcripts, quiet=0)
        self.drainer = Drainer(self.database, self.processor, self.deferred, self.interrupts, interval=0.2)

    async def store(self, report: dict[str, Any], **more: Any) -> Stored:
        async with self.database.statement() as connection:
            return await inbox.store(connection, "default", payload.read(json.dumps(report).encode(), **more))

    async def send(self, report: dict[str, Any], **more: Any) -> Stored:
        """Stores an event and works it off."""
        stored = await self.store(report, **more)
        assert await self.processor.work_off(stored.agent_id, up_to=stored.number, wait=15)
        return stored


@asynccontextmanager
async def crew(url: str, transcripts: Path = Path("/nowhere"), *, tells: Iterable[Kind] = ()) -> AsyncIterator[Crew]:
    all_of_it = Crew(url, transcripts, tells)
    try:
        yield all_of_it
    finally:
        await all_of_it.drainer.stop()
        await all_of_it.locks.close()
        await all_of_it.database.close()


def event(name: str, session: str = "s1", **fields: Any) -> dict[str, Any]:
    return {"session_id": session, "cwd": "/home/dev/shop", "hook_event_name": name, **fields}
