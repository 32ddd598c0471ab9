"""The outbox: messages that a transaction asked for, delivered after it and outside every lock, by any process.

At least once: who takes a row has it for ``LEASE`` seconds by the database's clock; if it dies, the row is due again.
In order for each agent: a message waits for the one before it, until that one was delivered or set aside.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Any, Final, NamedTuple
from uuid import UUID

from sqlalchemy import text

from ..errors import LockError
from ..pause import set_within
from .database import Database, is_unavailable

_log = logging.getLogger("holdfast.agents")

WORD: Final = "outbox"
"""What processes tell each other when there is something in it."""
LEASE: Final = 30.0
"""Seconds. Longer than a delivery may take."""
MOST_ATTEMPTS: Final = 8
LONGEST_PAUSE: Final = 900.0
"""Seconds. 1, 4, 16, … lie between attempts: some half an hour for all of them."""
MOST_AT_ONCE: Final = 8
GRACE: Final = 2.0
"""Seconds for deliveries that are under way at the end. What is broken off is delivered again."""


class Kind(StrEnum):
    """What can be told."""

    AWAITING_INPUT = "awaiting_input"
    COMPLETE = "complete"
    ENDED = "ended"


class Message(NamedTuple):
    id: int
    key: UUID
    """The same at every attempt: by it, a receiver knows what it has seen before."""
    payload: dict[str, Any]
    attempt: int


class Undelivered(LockError):
    """A message was not taken. Says why, in words that may be kept and logged."""


Deliver = Callable[[Message], Awaitable[None]]

# Each agent's first message, by the index from one agent to the next: what waits behind a receiver that is dead may be
# much, and is not looked at.
_FIRST: Final = """
    with recursive first as (
        (select agent_id, id from holdfast.outbox where status = 'waiting' order by agent_id, id limit 1)
        union all
        select next.agent_id, next.id from first cross join lateral (
            select agent_id, id from holdfast.outbox
            where status = 'waiting' and agent_id > first.agent_id order by agent_id, id limit 1
        ) next
    )
"""
# The place where messages are given up, whether their attempts failed or the processes that made them died.
_GIVE_UP: Final = text(f"""
    {_FIRST}
    update holdfast.outbox o set status = 'set_aside', settled_at = clock_timestamp(),
        error = coalesce(error, 'whoever tried did not live to tell')
    from first
    where o.id = first.id and o.status = 'waiting' and o.due_at <= clock_timestamp() and o.attempts >= :most_attempts
    returning o.id, o.agent_id, o.error
""")
_TAKE: Final = text(f"""
    {_FIRST}, due as materialized (
        select o.id from holdfast.outbox o join first on first.id = o.id
        where o.status = 'waiting' and o.due_at <= clock_timestamp() and o.attempts < :most_attempts
        order by o.due_at limit :most for update of o skip locked
    )
    update holdfast.outbox o
    set due_at = clock_timestamp() + make_interval(secs => :lease), attempts = attempts + 1
    from due where o.id = due.id
    returning o.id, o.key, o.payload, o.attempts
""")
_DONE: Final = text("""
    update holdfast.outbox set status = 'done', settled_at = clock_timestamp(), error = null
    where id = :id and status <> 'done'
""")
# Only if nobody has taken it since. The last attempt is due at once, to be given up.
_FAILED: Final = text("""
    update holdfast.outbox
    set error = :error, due_at = clock_timestamp() + make_interval(secs => case when attempts >= :most_attempts then 0
        else least(4.0 ^ (attempts - 1), :longest_pause) end)
    where id = :id and status = 'waiting' and attempts = :attempt
""")


class Outbox:
    """Works off the outbox: at its start, when it is told to look, and by its own clock."""

    def __init__(self, database: Database, deliver: Deliver, *, interval: float = 2.0) -> None:
        self._database = database
        self._deliver = deliver
        self._interval = interval
        self._look_now = asyncio.Event()
        self._under_way: set[asyncio.Task[None]] = set()
        self._looking: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._looking = asyncio.create_task(self._look_around())

    @property
    def alive(self) -> bool:
        return self._looking is not None and not self._looking.done()

    def look(self) -> None:
        self._look_now.set()

    async def stop(self) -> None:
        looking, self._looking = self._looking, None
        if looking is None:
            return
        looking.cancel()
        await asyncio.wait((looking,))
        if self._under_way:
            _, late = await asyncio.wait(self._under_way, timeout=GRACE)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    async def _look_around(self) -> None:
        while True:
            self._look_now.clear()
            try:
                await self._take_what_is_due()
            except Exception as error:
                if is_unavailable(error):
                    _log.warning("the outbox waits: %s", type(error).__name__, extra={"action": "outbox_waits"})
                else:
                    _log.exception("the outbox met something unexpected", extra={"action": "outbox_failed"})
            await set_within(self._look_now, self._interval)

    async def _take_what_is_due(self) -> None:
        bounds = {"most_attempts": MOST_ATTEMPTS}
        async with self._database.statement() as connection:
            for id_, agent_id, error in await connection.execute(_GIVE_UP, bounds):
                about = {"action": "message_set_aside", "agent": agent_id, "outbox": id_}
                _log.error("a message was set aside: %s", error, extra=about)
            most = MOST_AT_ONCE - len(self._under_way)
            if not most:
                return  # the first that is done looks again
            taken = (await connection.execute(_TAKE, bounds | {"lease": LEASE, "most": most})).all()
        for row in taken:
            task = asyncio.create_task(self._try(Message(*row)))
            self._under_way.add(task)
            task.add_done_callback(self._tried)

    def _tried(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        self.look()  # for the agent's next message, and since there is room for another

    async def _try(self, message: Message) -> None:
        about = {"action": "message_delivered", "outbox": message.id, "attempt": message.attempt}
        try:
            error = await self._error_of(message)
            async with self._database.statement() as connection:
                if error is None:
                    await connection.execute(_DONE, {"id": message.id})
                else:
                    bounds = {"most_attempts": MOST_ATTEMPTS, "longest_pause": LONGEST_PAUSE}
                    failed = {"id": message.id, "attempt": message.attempt, "error": error}
                    await connection.execute(_FAILED, failed | bounds)
        except Exception as trouble:  # its lease ends, and it is tried again
            _log.warning("what became of a message could not be kept: %s", type(trouble).__name__, extra=about)
            return
        if error is None:
            _log.info("a message was delivered", extra=about)
        else:
            _log.warning("a message was not taken: %s", error, extra=about | {"action": "message_not_taken"})

    async def _error_of(self, message: Message) -> str | None:
        """Delivers. Foreign errors may name the receiver, whose address may be a secret: their kind is enough."""
        try:
            await self._deliver(message)
        except Undelivered as error:
            return str(error)[:500]
        except Exception as error:
            return type(error).__name__
        return None
