"""Everything that a worker consists of, and its life: built, started, told that the end is near, closed."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from typing import Final

from .._async.locks import AsyncLocks
from ..agents.database import Database
from ..agents.deferred import DeferredStops
from ..agents.drainer import Drainer
from ..agents.interrupts import Interrupts
from ..agents.outbox import WORD, Outbox
from ..agents.processing import Processor
from ..agents.reception import Reception
from ..agents.retention import Retention
from ..agents.view import View
from ..scheduler import Scheduler
from .settings import Settings
from .tokens import Tokens
from .webhook import Webhook

LOCK_CONNECTIONS: Final = 1
LOCK_WAITERS: Final = 8
LISTENERS: Final = 1
SCHEDULER_CONNECTIONS: Final = 9
"""Its own pool of up to 8, and one that listens."""
SCHEDULER_GRACE: Final = 15.0
"""Seconds for runs that are under way at the end."""
THREADS: Final = 64
"""For whatever blocks: reading transcripts, looking names up. That of a webhook may take each as long as it likes, and
goes on when its delivery was given up; with the few that a small machine has by default, all else would wait for it."""
WORK_SECONDS: Final = 10.0
"""For a hook to work off what came before it, once it has the lock. What takes longer is answered 202."""


class Service:
    MOST_STREAMS: Final = 50

    def __init__(self, settings: Settings, url: str) -> None:
        self.settings = settings
        self.database = Database(url, pool_size=settings.pool_size, max_overflow=settings.max_overflow)
        self.locks = AsyncLocks.from_url(
            url, mode="advisory", max_connections=LOCK_CONNECTIONS, max_waiting=LOCK_WAITERS
        )
        self.tokens = Tokens(self.database)
        processor = Processor(self.database, self.locks, connections=settings.connections, tells=settings.tells)
        deferred = DeferredStops(self.database, processor, settings.transcripts)
        interrupts = Interrupts(self.database, settings.transcripts)
        self.webhook = Webhook(settings.notify_url.get_secret_value()) if settings.notify_url is not None else None
        self.outbox = Outbox(self.database, self.webhook.post) if self.webhook is not None else None
        hears = {WORD: self.outbox.look} if self.outbox is not None else {}
        retention = Retention(self.database, settings.keep_days)
        self.drainer = Drainer(self.database, processor, deferred, interrupts, retention=retention, hears=hears)
        self.reception = Reception(
            self.database, processor, self.drainer, wait=settings.hook_wait, limit=settings.hook_wait + WORK_SECONDS
        )
        self.view = View(self.database)
        self.scheduler = Scheduler(url)
        self.ending = asyncio.Event()
        self.streams = 0
        """How many follow along."""

    async def start(self) -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(THREADS, thread_name_prefix="holdfast"))
        self.drainer.start()
        if self.outbox is not None:
            self.outbox.start()
        await self.scheduler.start()

    def prepare_to_end(self) -> None:
        """No more waiting: whatever takes long answers now."""
        self.ending.set()
        self.reception.close()

    async def close(self) -> None:
        self.prepare_to_end()
        async with AsyncExitStack() as closing:  # each, whatever becomes of the others
            closing.push_async_callback(self.database.close)
            closing.push_async_callback(self.locks.close)
            if self.webhook is not None and self.outbox is not None:
                closing.push_async_callback(self.webhook.close)
                closing.push_async_callback(self.outbox.stop)
            closing.push_async_callback(self.drainer.stop)
            closing.push_async_callback(self.scheduler.stop, SCHEDULER_GRACE)  # first: runs may still need the rest


def connections_of_a_worker(settings: Settings) -> int:
    return settings.connections + LOCK_CONNECTIONS + LOCK_WAITERS + LISTENERS + SCHEDULER_CONNECTIONS
