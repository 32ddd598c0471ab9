"""Works off what requests have left behind: in each process, called by them, by NOTIFY, and by its own clock."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final

import psycopg
from sqlalchemy import text

from ..errors import LockError
from ..pause import set_within
from .database import CHANNEL, Database, is_unavailable
from .deferred import DeferredStops
from .interrupts import Interrupts
from .processing import Processor
from .retention import Retention

_log = logging.getLogger("holdfast.agents")

LOCK_WAIT: Final = 15.0
SHORT_PAUSE: Final = 0.1

# Nobody tells of a process that was killed between storing and processing: what is left lying is found by its age.
_LEFT_BEHIND: Final = text("""
    select distinct agent_id from holdfast.event
    where status = 'pending' and received_at <= clock_timestamp() - make_interval(secs => :age)
""")


class Drainer:
    def __init__(
        self,
        database: Database,
        processor: Processor,
        deferred: DeferredStops,
        interrupts: Interrupts,
        *,
        interval: float = 2.0,
        retention: Retention | None = None,
        hears: Mapping[str, Callable[[], None]] | None = None,
    ) -> None:
        """``hears``: what else is told on its channel, and whom it concerns."""
        self._database = database
        self._processor = processor
        self._deferred = deferred
        self._interrupts = interrupts
        self._retention = retention
        self._interval = interval
        self._hears = hears or {}
        self._look_now = asyncio.Event()
        self._at_work: dict[int, asyncio.Task[None]] = {}
        self._once_more: set[int] = set()
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        self._tasks = [asyncio.create_task(self._listen()), asyncio.create_task(self._look_around())]

    @property
    def alive(self) -> bool:
        return bool(self._tasks) and not any(task.done() for task in self._tasks)

    async def stop(self) -> None:
        """What is under way is broken off: it is rolled back, and stays in the inbox."""
        looking, self._tasks = self._tasks, []
        self._once_more.clear()
        tasks = [*looking, *self._at_work.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def call(self, agent_id: int) -> None:
        """There is something in this agent's inbox. Who is called while at it does it once more: it may have looked."""
        if not self._tasks:
            return
        if agent_id in self._at_work:
            self._once_more.add(agent_id)
            return
        task = asyncio.create_task(self._drain(agent_id))
        self._at_work[agent_id] = task
        task.add_done_callback(lambda _: self._drained(agent_id))

    def _drained(self, agent_id: int) -> None:
        del self._at_work[agent_id]
        if agent_id in self._once_more:
            self._once_more.discard(agent_id)
            self.call(agent_id)

    async def _drain(self, agent_id: int) -> None:
        try:
            if not await self._processor.work_off(agent_id, wait=LOCK_WAIT, note="drainer"):
                asyncio.get_running_loop().call_later(SHORT_PAUSE, self.call, agent_id)
        except LockError as error:  # found again by its age
            _log.warning("left for later: %s", error, extra={"action": "drain_postponed", "agent": agent_id})
        except Exception:
            _log.exception("an inbox could not be worked off", extra={"action": "drain_failed", "agent": agent_id})

    async def _look_around(self) -> None:
        age = 0.0  # at the start everything counts as left behind
        while True:
            pause = self._interval
            try:
                for agent_id in await self._left_behind(age) | set(await self._interrupts.look()):
                    self.call(agent_id)
                age = 1.0
                due_in = await self._deferred.work_off()
                if due_in is not None:
                    pause = min(pause, max(due_in, SHORT_PAUSE))
                if self._retention is not None:
                    await self._retention.look()
            except Exception as error:
                if isinstance(error, LockError) or is_unavailable(error):
                    _log.warning("the drainer waits: %s", type(error).__name__, extra={"action": "drainer_waits"})
                else:
                    _log.exception("the drainer met something unexpected", extra={"action": "drainer_failed"})
            await set_within(self._look_now, pause)
            self._look_now.clear()

    async def _left_behind(self, age: float) -> set[int]:
        async with self._database.statement() as connection:
            return set((await connection.execute(_LEFT_BEHIND, {"age": age})).scalars())

    async def _listen(self) -> None:
        while True:
            try:
                async with await self._database.connect() as connection:
                    await connection.set_autocommit(True)
                    await connection.execute(f"listen {CHANNEL}")
                    for look in (self._look_now.set, *self._hears.values()):
                        look()  # for what was told before we listened
                    async for notice in connection.notifies():
                        if notice.payload.isdecimal():
                            self.call(int(notice.payload))
                        else:
                            self._hears.get(notice.payload, self._look_now.set)()
            except psycopg.Error as error:
                _log.warning("not listening: %s", type(error).__name__, extra={"action": "listen_lost"})
                await asyncio.sleep(self._interval)
