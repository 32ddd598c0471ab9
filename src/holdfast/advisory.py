"""``advisory_lock`` and ``advisory_lock_or_skip``: locks by function, on a client that the application configures once.

    holdfast.configure("postgresql://…")
    with advisory_lock(LockNamespace.AGENT, agent.id): ...
    async with advisory_lock_or_skip(LockNamespace.AGENT, agent.id) as acquired: ...

Nothing is ever taken from the application's own pool or session: the lock survives all their commits and rollbacks.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from threading import Lock
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from . import fork
from ._sync.blocks import Hold, TryHold
from ._sync.locks import Locks
from .engines.base import Engine
from .errors import InvalidOption, LockError
from .flow import run
from .options import DEFAULT_WAIT

if TYPE_CHECKING:
    from ._async.blocks import AsyncHold, AsyncTryHold
    from ._async.locks import AsyncLocks

T = TypeVar("T")


class _Clients:
    """A sync and an async client of one place, each made when it is first needed."""

    def __init__(self, new_engine: Callable[[], Engine]) -> None:
        self._new_engine = new_engine
        self._mutex = Lock()
        self._locks: Locks | None = None
        self._async_locks: AsyncLocks | None = None
        fork.in_child(self._new_mutex)

    def sync(self) -> Locks:
        with self._mutex:
            if self._locks is None:
                self._locks = Locks(self._new_engine())
            return self._locks

    def asynchronous(self) -> AsyncLocks:
        from ._async.locks import AsyncLocks

        with self._mutex:
            if self._async_locks is None:
                self._async_locks = AsyncLocks(self._new_engine())
            return self._async_locks

    def close(self) -> None:
        with self._mutex:
            clients = [client._client for client in (self._locks, self._async_locks) if client is not None]
        for client in clients:
            run(client.close())

    def _new_mutex(self) -> None:
        self._mutex = Lock()


_configured: _Clients | None = None


def configure(target: Any, **options: Any) -> None:
    """Says where ``advisory_lock`` takes its locks. Call it once, when the application starts.

    ``target`` is a URL, a SQLAlchemy ``Engine`` or ``AsyncEngine`` (whose address and connect arguments are taken over,
    but never a connection of its pool), or a function that opens a psycopg connection. ``options`` are the engine's.
    A second call closes what the first one opened; locks that are held then are lost.
    """
    global _configured
    before, _configured = _configured, _Clients(_engine_source(target, options))
    if before is not None:
        before.close()


def _engine_source(target: Any, options: dict[str, Any]) -> Callable[[], Engine]:
    new_engine: Callable[[], Engine]
    if isinstance(target, str):
        from .engines.registry import engine_from_url

        new_engine = partial(engine_from_url, target, options)
    elif callable(target) or hasattr(target, "dialect"):
        from .engines.postgres.sources import engine_from

        new_engine = partial(engine_from, target, options)
    else:
        raise InvalidOption(f"configure: {type(target).__name__} is no URL, no SQLAlchemy engine and no function")
    made = [new_engine()]  # what is wrong with it is said here, not at the first lock
    return lambda: made.pop() if made else new_engine()


def _clients() -> _Clients:
    if _configured is None:
        raise LockError("advisory_lock: say where its locks live first: holdfast.configure('postgresql://…')")
    return _configured


class _EitherBlock(Generic[T]):
    """A block for ``with`` and for ``async with``: which of the two it is shows only when it is entered."""

    __slots__ = ("_block", "_entity", "_locks", "_namespace")

    def __init__(self, namespace: int, entity: int, locks: Locks | AsyncLocks | None) -> None:
        self._namespace = namespace
        self._entity = entity
        self._locks = locks
        self._block: Any = None

    def _sync_client(self) -> Locks:
        locks = self._locks if self._locks is not None else _clients().sync()
        if not isinstance(locks, Locks):
            raise InvalidOption("advisory_lock: an AsyncLocks client goes with `async with`")
        return locks

    def _async_client(self) -> AsyncLocks:
        locks = self._locks if self._locks is not None else _clients().asynchronous()
        if isinstance(locks, Locks):
            raise InvalidOption("advisory_lock: a Locks client goes with `with`")
        return locks

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._block.__exit__(kind, error, traceback)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._block.__aexit__(kind, error, traceback)


class advisory_lock(_EitherBlock[None]):
    """Holds the lock of one entity for a block; ``AdvisoryLockError`` when ``timeout`` seconds have passed, and at once
    when the caller holds it already."""

    __slots__ = ("_timeout",)

    def __init__(
        self,
        namespace: int,
        entity_id: int,
        timeout: float | None = DEFAULT_WAIT,
        *,
        locks: Locks | AsyncLocks | None = None,
    ) -> None:
        super().__init__(namespace, entity_id, locks)
        self._timeout = timeout

    def __enter__(self) -> None:
        block: Hold = self._sync_client().hold(self._namespace, self._entity, wait=self._timeout)
        self._block = block
        block.__enter__()

    async def __aenter__(self) -> None:
        block: AsyncHold = self._async_client().hold(self._namespace, self._entity, wait=self._timeout)
        self._block = block
        await block.__aenter__()


class advisory_lock_or_skip(_EitherBlock[bool]):
    """Tries the lock of one entity for a block: gives it True, or False when it is busy, and raises nothing."""

    __slots__ = ()

    def __init__(self, namespace: int, entity_id: int, *, locks: Locks | AsyncLocks | None = None) -> None:
        super().__init__(namespace, entity_id, locks)

    def __enter__(self) -> bool:
        block: TryHold = self._sync_client().try_hold(self._namespace, self._entity)
        self._block = block
        return block.__enter__() is not None

    async def __aenter__(self) -> bool:
        block: AsyncTryHold = self._async_client().try_hold(self._namespace, self._entity)
        self._block = block
        return await block.__aenter__() is not None
