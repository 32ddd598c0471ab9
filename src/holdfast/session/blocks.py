"""The blocks that ``SessionLock`` gives: those of the client, counted, and known to their lock while they run."""

from __future__ import annotations

from asyncio import CancelledError
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING

from .._async.blocks import AsyncHold
from .._async.held import AsyncHeld
from ..errors import BackendUnavailable, NotHeld
from . import metrics
from .errors import SessionBusyError
from .keys import pattern_of

if TYPE_CHECKING:
    from .lock import SessionLock


class _SessionBlock:
    __slots__ = ("_block", "_held", "_lock")

    def __init__(self, lock: SessionLock, block: AsyncHold) -> None:
        self._lock = lock
        self._block = block
        self._held: AsyncHeld | None = None

    def _entered(self, held: AsyncHeld) -> None:
        self._held = self._lock.held[held.key] = held

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        held, known = self._held, self._lock.held
        if held is not None and known.get(held.key) is held:  # not if its owner has taken it anew
            del known[held.key]
        await self._block.__aexit__(kind, error, traceback)


class SessionAcquire(_SessionBlock):
    """Waits for the lock; the block gets None when it was busy for all of the time."""

    __slots__ = ()

    async def __aenter__(self) -> AsyncHeld | None:
        began = perf_counter()
        try:
            held = await self._block.enter()
        except BaseException as error:
            metrics.failures.labels(self._reason(error)).inc()
            raise
        try:
            self._count(held, perf_counter() - began)
            if held is not None:
                self._entered(held)
        except BaseException as error:
            await self._block.leave(error)
            raise
        return held

    def _count(self, held: AsyncHeld | None, took: float) -> None:
        if self._block.waited:
            metrics.waits.inc()
        if held is None:
            metrics.failures.labels("timeout").inc()
        elif not held.protected:
            metrics.failures.labels(self._unreachable()).inc()
            metrics.unprotected.inc()
        else:
            metrics.acquire_duration.labels(pattern_of(held.key, self._lock.channels)).observe(took)

    def _reason(self, error: BaseException) -> str:
        if isinstance(error, BackendUnavailable):
            return self._unreachable()
        return "cancelled" if isinstance(error, CancelledError) else "refused"

    def _unreachable(self) -> str:
        return f"{self._lock.locks._client.engine.scheme}_error"


class SessionHold:
    """Waits for the lock; ``SessionBusyError`` when it was busy for all of the time."""

    __slots__ = ("_acquire", "_session_key")

    def __init__(self, acquire: SessionAcquire, session_key: str) -> None:
        self._acquire = acquire
        self._session_key = session_key

    async def __aenter__(self) -> AsyncHeld:
        held = await self._acquire.__aenter__()
        if held is None:
            raise SessionBusyError(self._session_key)
        return held

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._acquire.__aexit__(kind, error, traceback)


class SessionAttach(_SessionBlock):
    """Takes a detached lock up again."""

    __slots__ = ()

    async def __aenter__(self) -> AsyncHeld:
        held = await self._block.enter()
        if held is None:  # the client says so by itself
            raise NotHeld
        self._entered(held)
        return held
