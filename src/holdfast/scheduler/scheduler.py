"""The scheduler: one instance of any number, each of which reads the table and trusts nothing that it remembers."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import time
from collections.abc import MutableMapping
from math import inf
from random import uniform
from types import TracebackType
from typing import Any, Final, Self

from ..errors import InvalidOption
from ..keys import LockNamespace
from ..pause import set_within
from .actions import ScheduledAction
from .agenda import Agenda
from .attempt import Handler, make_attempt
from .counts import Counts, Health, Statistics
from .dispatchers import ACTION_DISPATCHERS
from .execution import Execution
from .leases import Leases
from .memory import MemoryStore
from .reports import Reports
from .store import Attempt, Claim, Claimer, Ending, Store, Taken

SCHEDULER_LOCK_NAMESPACE: Final = LockNamespace.SCHEDULER
"""The first half of every action's advisory lock, unless a scheduler is given another."""

_BATCH: Final = 100
_RESERVED: Final = range(1, 100)
_EMPTY_HANDED, _EMPTY_HANDED_LONGEST = 0.02, 0.25
"""Seconds until the next look, if others were at all that was due: they are done in a moment, as a rule."""
_LONGEST_BACKOFF: Final = 5.0
_LAST_WORD: Final = 5.0
"""Seconds in which runs that were cancelled by ``stop`` may end."""
_DAY: Final = 86_400.0

_log = logging.getLogger("holdfast.scheduler")


class Scheduler(Agenda):
    """``async_db``: a URL, a psycopg pool, an ``AsyncEngine``, an object with ``_pool.connection()``; or None, which is
    the single-instance mode: in memory, and for one process only."""

    def __init__(
        self,
        async_db: Any = None,
        *,
        namespace: int = SCHEDULER_LOCK_NAMESPACE,
        lease: float = 30.0,
        poll_interval: float | None = None,
        max_running: int = 50,
        keep_runs: float = 30 * _DAY,
        dispatchers: MutableMapping[str, Handler] | None = None,
        instance: str | None = None,
    ) -> None:
        _check_options(namespace, lease, poll_interval, max_running)
        self._async_db = async_db
        super().__init__(_store_of(async_db, namespace), ACTION_DISPATCHERS if dispatchers is None else dispatchers)
        self.instance = instance or f"{socket.gethostname()}:{os.getpid()}:{secrets.token_hex(4)}"
        self._counts = Counts(self.instance, self._dispatchers)
        self._claimer = Claimer(self.instance, float(lease))
        self._poll_interval = poll_interval or (5.0 if self._store.announces else 1.0)
        self._max_running = max_running
        self._keep_runs = keep_runs
        self._leases = Leases(self._store, self._claimer, self._counts)
        self._reports = Reports(self._store, self._counts.trouble)
        self._running_actions: set[int] = set()
        self._runs: set[asyncio.Task[None]] = set()
        self._wake = asyncio.Event()
        self._claiming: asyncio.Task[None] | None = None
        self._helpers: list[asyncio.Task[None]] = []
        self._in_vain = 0
        self._stopping = False

    # beginning and end

    async def start(self) -> None:
        """Begins to claim. ``BackendUnavailable`` if there is no database, or not its tables: never on one's own."""
        if self._claiming is not None:
            raise InvalidOption("this scheduler has been started before")
        try:
            await self._store.open()
        except BaseException:
            await self._store.close()  # its connections; it may be started again later
            raise
        if self._async_db is None:
            _log.info("action=started mode=single-instance: other processes are not coordinated with")
        self._claiming = asyncio.create_task(self._claim_forever())
        self._helpers.append(asyncio.create_task(self._tidy_forever()))
        if self._store.announces:
            self._helpers.append(asyncio.create_task(self._store.listen(self._wake.set, self._counts.deaf)))

    async def stop(self, grace: float = 30.0) -> None:
        """Not ready; no more claims; waits ``grace`` seconds for what runs, then cancels it; and lets go.

        A run that was cancelled is recorded so, or given to another instance if it is to run at least once. One whose
        thread cannot be stopped keeps its lease for as long as this process and its loop live.
        """
        self._stopping = True
        self._wake.set()
        if self._claiming is not None:
            await asyncio.wait([self._claiming])  # not cancelled: what it is just claiming must be run, too
        if self._runs:
            await asyncio.wait(self._runs, timeout=grace)
        if self._runs:
            for execution in self._leases.executions:
                execution.tell("the instance is shutting down")
            self._leases.cancel_all()
            await asyncio.wait(self._runs, timeout=_LAST_WORD)
        for helper in self._helpers:
            helper.cancel()
        await asyncio.gather(*self._helpers, return_exceptions=True)
        self._helpers.clear()
        if self._runs:
            _log.warning("action=stop_left_behind runs=%s", [one.run.id for one in self._leases.executions])
            for execution in self._leases.executions:
                execution.abandoned = True
            self._helpers.append(asyncio.create_task(self._close_after(set(self._runs))))
        else:
            await self._store.close()

    async def _close_after(self, runs: set[asyncio.Task[None]]) -> None:
        await asyncio.wait(runs)
        await self._store.close()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    @property
    def ready(self) -> bool:
        return self._claiming is not None and not self._stopping

    def health(self) -> Health:
        mode = "single-instance" if self._async_db is None else "cluster"
        return Health(self.ready, self._counts.healthy, mode, len(self._leases), self._counts.last_error)

    @property
    def statistics(self) -> Statistics:
        return self._counts.statistics

    # claiming

    async def _claim_forever(self) -> None:
        backoff = 0.1
        while not self._stopping:
            self._wake.clear()
            try:
                pause = await self._claim_what_is_due()
                backoff = 0.1
            except Exception as error:  # whatever it is: skipped, loudly, and never run
                self._counts.trouble("claim", error)
                pause = uniform(backoff / 2, backoff)
                backoff = min(2 * backoff, _LONGEST_BACKOFF)
            await set_within(self._wake, pause)

    async def _claim_what_is_due(self) -> float:
        """How long there is nothing to do."""
        room = self._max_running - len(self._leases)
        if room <= 0:
            return self._poll_interval  # or until a run ends
        look = await self._store.look()
        self._counts.answered()
        left = (look.due - look.now).total_seconds() if look.due is not None else inf
        if left > 0:
            self._in_vain = 0
            return min(left, self._poll_interval)
        asked_at = time.monotonic()
        taken = await self._store.claim_due(self._claimer, min(room, _BATCH))
        self._counts.settled(taken.settled)
        for claim in taken.claims:
            self._begin(claim, asked_at)
        if taken.claims or taken.settled:
            self._in_vain = 0
            return 0.0
        _log.debug("action=skipped instance=%s: others were at all that is due", self.instance)
        self._in_vain = min(self._in_vain + 1, 10)
        longest = min(_EMPTY_HANDED * float(2**self._in_vain), _EMPTY_HANDED_LONGEST)
        return uniform(longest / 2, longest)

    async def _tidy_forever(self) -> None:
        while True:
            await asyncio.sleep(uniform(30, 90))
            try:
                await self._store.forget_runs(self._keep_runs)
            except Exception as error:
                self._counts.trouble("tidy", error)

    async def _try_acquire_action_lock(self, action_id: int) -> bool:
        """The gate: whether nobody else was at this action just now. False also if the database cannot say.

        Its lock ends with its own transaction, so it decides nothing: the claim takes the lock again, and holds it
        until the occurrence is recorded as taken.
        """
        try:
            return await self._store.try_lock(action_id)
        except Exception as error:
            self._counts.trouble("lock", error)
            return False

    async def _execute_action(self, action: ScheduledAction) -> None:
        """Runs the occurrence that ``action`` shows as its next (or one now, if it shows none), unless it was taken."""
        action_id = action.id or 0
        asked_at = time.monotonic()
        taken = Taken()
        if await self._try_acquire_action_lock(action_id):
            try:
                taken = await self._store.claim_occurrence(self._claimer, action)
            except Exception as error:
                self._counts.trouble("claim", error)
        self._counts.settled(taken.settled)
        if not taken.claims:
            _log.debug("action=skipped action_id=%s: another instance has it", action_id)
            self._not_running(action_id)
            return
        (claim,) = taken.claims
        action.execution_count = claim.action.execution_count
        begun = self._begin(claim, asked_at)
        if begun is not None:
            await begun

    # running

    def _begin(self, claim: Claim, asked_at: float) -> asyncio.Task[None] | None:
        if time.monotonic() >= asked_at + self._leases.usable:
            # This process stood still, or the answer was long on its way: the run may be another's by now.
            self._counts.lost(claim.run, "its lease had ended before the claim was known here")
            return None
        execution = Execution(claim.action, claim.run)
        attempt = asyncio.create_task(make_attempt(execution, self._dispatchers.get(claim.action.action_type)))
        self._leases.take(claim, execution, attempt, asked_at)
        self._running_actions.add(claim.run.action_id)
        self._counts.began(claim)
        run = asyncio.create_task(self._see_through(execution, attempt))
        self._runs.add(run)
        run.add_done_callback(self._runs.discard)
        return run

    async def _see_through(self, execution: Execution, attempt: asyncio.Task[Ending | None]) -> None:
        run, ending = execution.run, None
        try:
            await asyncio.wait([attempt])
            ending = None if attempt.cancelled() else attempt.result()
            if ending is not None:
                taken = await self._reports.send(ending)
                self._counts.ended(execution.action.action_type, ending, taken=taken)
        finally:
            was_full = len(self._leases) >= self._max_running
            self._leases.drop(Attempt(run.id, run.attempt))
            self._not_running(run.action_id)
            self._counts.let_go()
            if was_full or (ending is not None and ending.retry_in is not None):
                self._wake.set()

    def _not_running(self, action_id: int) -> None:
        if action_id not in self._leases.action_ids:
            self._running_actions.discard(action_id)


def _store_of(async_db: Any, namespace: int) -> Store:
    if async_db is None:
        return MemoryStore()
    from .postgres import PostgresStore
    from .postgres.database import database_of

    return PostgresStore(database_of(async_db), namespace)


def _check_options(namespace: int, lease: float, poll_interval: float | None, max_running: int) -> None:
    if not isinstance(namespace, int) or not -(2**31) <= namespace < 2**31:
        raise InvalidOption(f"namespace={namespace!r}: give a number of 32 bits")
    if namespace in _RESERVED and namespace != SCHEDULER_LOCK_NAMESPACE:
        raise InvalidOption(f"namespace={namespace!r}: the numbers 1 to 99 are kept for Holdfast's other locks")
    for name, value, least in (("lease", lease, 0.3), ("poll_interval", poll_interval or 1.0, 0.01)):
        if not isinstance(value, int | float) or not least <= value <= _DAY:
            raise InvalidOption(f"{name}={value!r}: give seconds, at least {least:g}")
    if not isinstance(max_running, int) or max_running < 1:
        raise InvalidOption(f"max_running={max_running!r}: give a number from 1")


_current: Scheduler | None = None


def get_scheduler(async_db: Any = None, **options: Any) -> Scheduler:
    """This process's scheduler: made by the first call, the same for those after it, until it is stopped."""
    global _current
    if _current is None or _current._stopping:
        _current = Scheduler(async_db, **options)
    elif (async_db is not None and async_db is not _current._async_db) or options:
        raise InvalidOption("get_scheduler: this process has a scheduler already, made otherwise; stop it first")
    return _current
