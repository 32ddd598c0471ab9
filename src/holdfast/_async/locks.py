"""The client: five lines to a lock."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Iterable
from functools import wraps
from types import TracebackType
from typing import Any, Literal, ParamSpec, TypeVar, overload

from ..client import Client
from ..engines.base import Capabilities, Engine, Eviction, Holder
from ..engines.registry import engine_from_url
from ..flow import TaskWakeup, finish_async, run_async
from ..keys import Key, KeyLike
from ..options import DEFAULT_WAIT, UNSET, Busy, Unavailable, Unset
from ..template import KeyTemplate, checked_busy
from ..token import Token
from .blocks import AsyncHold, AsyncHoldMany, AsyncTryHold
from .body import BLOCKS, OnLost, check_function

P = ParamSpec("P")
T = TypeVar("T")


class AsyncLocks:
    """Locks on one engine. Keeps no state of its own about who holds what: that is on the handles."""

    def __init__(
        self,
        engine: Engine,
        *,
        space: str = "",
        wait: float | None = DEFAULT_WAIT,
        ttl: float | None = None,
        order: Literal["off", "warn", "raise"] = "warn",
    ) -> None:
        self._client = Client(engine, TaskWakeup, blocks=BLOCKS, space=space, wait=wait, ttl=ttl, order_check=order)

    @classmethod
    def from_url(
        cls,
        url: str,
        *,
        space: str = "",
        wait: float | None = DEFAULT_WAIT,
        ttl: float | None = None,
        order: Literal["off", "warn", "raise"] = "warn",
        **options: Any,
    ) -> AsyncLocks:
        """Locks that live at ``url``: ``memory://name``, ``file:///folder``, ``postgresql://…`` or ``redis://…``.

        ``space`` keeps deployments that share a server apart. ``wait`` and ``ttl`` are the defaults of every call;
        ``order`` says what happens when two places take the same locks in opposite order. Further options are the
        engine's.
        """
        return cls(engine_from_url(url, options), space=space, wait=wait, ttl=ttl, order=order)

    @property
    def unprotected(self) -> int:
        """How many blocks of this client ran without a lock (``unavailable="proceed"``)."""
        return self._client.unprotected

    @property
    def capabilities(self) -> Capabilities:
        """What the engine can do."""
        return self._client.engine.capabilities

    @overload
    def hold(
        self,
        key: Key | str,
        /,
        *,
        wait: float | None | Unset = ...,
        ttl: float | None | Unset = ...,
        note: str | None = ...,
        owner: str | None = ...,
        on_lost: OnLost | None = ...,
        unavailable: Unavailable = ...,
    ) -> AsyncHold: ...

    @overload
    def hold(
        self,
        namespace: int,
        entity: int,
        /,
        *,
        wait: float | None | Unset = ...,
        ttl: float | None | Unset = ...,
        note: str | None = ...,
        owner: str | None = ...,
        on_lost: OnLost | None = ...,
        unavailable: Unavailable = ...,
    ) -> AsyncHold: ...

    def hold(
        self,
        *key: Any,
        wait: float | None | Unset = UNSET,
        ttl: float | None | Unset = UNSET,
        note: str | None = None,
        owner: str | None = None,
        on_lost: OnLost | None = None,
        unavailable: Unavailable = "refuse",
    ) -> AsyncHold:
        """Holds the lock for a block: ``hold("nightly-report")`` or ``hold(LockNamespace.AGENT, 42)``.

        Raises ``NotAcquired`` when ``wait`` seconds have passed (0: tries once, None: no limit), ``WouldDeadlock`` when
        the caller holds it already. ``note`` is shown to operators; ``on_lost`` is called with the handle on a loss.
        ``unavailable="proceed"`` runs the block also when the engine cannot be reached, without a lock: it is logged,
        counted, and ``held.protected`` is False. The default is ``BackendUnavailable``.
        """
        ticket = self._client.ticket(self._client.key(key), wait, ttl, note, owner, unavailable)
        return AsyncHold(self._client, ticket, on_lost)

    @overload
    def try_hold(
        self,
        key: Key | str,
        /,
        *,
        ttl: float | None | Unset = ...,
        note: str | None = ...,
        owner: str | None = ...,
        on_lost: OnLost | None = ...,
        unavailable: Unavailable = ...,
    ) -> AsyncTryHold: ...

    @overload
    def try_hold(
        self,
        namespace: int,
        entity: int,
        /,
        *,
        ttl: float | None | Unset = ...,
        note: str | None = ...,
        owner: str | None = ...,
        on_lost: OnLost | None = ...,
        unavailable: Unavailable = ...,
    ) -> AsyncTryHold: ...

    def try_hold(
        self,
        *key: Any,
        ttl: float | None | Unset = UNSET,
        note: str | None = None,
        owner: str | None = None,
        on_lost: OnLost | None = None,
        unavailable: Unavailable = "refuse",
    ) -> AsyncTryHold:
        """Like ``hold``, but tries once and gives the block None when the lock is busy, also by the caller itself."""
        ticket = self._client.ticket(self._client.key(key), 0, ttl, note, owner, unavailable)
        return AsyncTryHold(self._client, ticket, on_lost)

    def hold_many(
        self,
        keys: Iterable[KeyLike],
        *,
        wait: float | None | Unset = UNSET,
        ttl: float | None | Unset = UNSET,
        note: str | None = None,
        on_lost: OnLost | None = None,
        unavailable: Unavailable = "refuse",
    ) -> AsyncHoldMany:
        """Holds several locks, all or none. They are taken in one canonical order, so two callers cannot dead-lock."""
        tickets, positions = self._client.tickets(keys, wait, ttl, note, unavailable)
        return AsyncHoldMany(self._client, tickets, positions, on_lost)

    @overload
    def exclusive(
        self,
        *key: Any,
        busy: Literal["skip"],
        wait: float | None | Unset = ...,
        ttl: float | None | Unset = ...,
        note: str | None = ...,
        unavailable: Unavailable = ...,
    ) -> Callable[[Callable[P, Awaitable[T]]], Callable[P, Coroutine[Any, Any, T | None]]]: ...

    @overload
    def exclusive(
        self,
        *key: Any,
        busy: Literal["wait", "raise"] = ...,
        wait: float | None | Unset = ...,
        ttl: float | None | Unset = ...,
        note: str | None = ...,
        unavailable: Unavailable = ...,
    ) -> Callable[[Callable[P, Awaitable[T]]], Callable[P, Coroutine[Any, Any, T]]]: ...

    def exclusive(
        self,
        *key: Any,
        busy: Busy = "wait",
        wait: float | None | Unset = UNSET,
        ttl: float | None | Unset = UNSET,
        note: str | None = None,
        unavailable: Unavailable = "refuse",
    ) -> Callable[[Callable[P, Awaitable[T]]], Callable[P, Coroutine[Any, Any, T | None]]]:
        """Runs a function under a lock that its arguments name: ``@locks.exclusive("sync:{user_id}", busy="skip")``.

        A namespace goes with a field, too: ``exclusive(LockNamespace.AGENT, "{agent_id}")``. When the lock is busy the
        call waits, is skipped and returns None, or raises ``NotAcquired`` at once.
        """
        template, wait = KeyTemplate(key), checked_busy(busy, wait)
        if not template.fields:
            # What is wrong with it is said here and now.
            self._client.ticket(self._client.key(key), wait, ttl, note, None, unavailable)

        def decorate(function: Callable[P, Awaitable[T]]) -> Callable[P, Coroutine[Any, Any, T | None]]:
            check_function(function)
            key_for = template.bind(function)

            @wraps(function)
            async def exclusively(*args: P.args, **kwargs: P.kwargs) -> T | None:
                ticket = self._client.ticket(
                    self._client.key(key_for(args, kwargs)), wait, ttl, note, None, unavailable
                )
                if busy == "skip":
                    async with AsyncTryHold(self._client, ticket, None) as held:
                        return await function(*args, **kwargs) if held is not None else None
                async with AsyncHold(self._client, ticket, None):
                    return await function(*args, **kwargs)

            return exclusively

        return decorate

    def attach(self, token: str, *, ttl: float | None | Unset = UNSET, on_lost: OnLost | None = None) -> AsyncHold:
        """Takes up a lock that ``held.detach()`` left held; the block releases it unless it is detached again."""
        self._client.check_detachable()
        key, secret = Token.parse(token)
        ticket = self._client.ticket(self._client.key((key,)), UNSET, ttl, None)
        return AsyncHold(self._client, ticket, on_lost, secret)

    async def extend_detached(self, token: str, ttl: float | Unset = UNSET) -> bool:
        """Sets what remains of a detached lock's lease, and leaves it detached. False if it is not the token's."""
        return await finish_async(self._client.extend_detached(token, ttl))

    async def release_detached(self, token: str) -> bool:
        """Releases a detached lock. False if it was not the token's any more: it ran out, or was taken up elsewhere."""
        return await finish_async(self._client.release_detached(token))

    async def holder(self, *key: Any) -> Holder | None:
        """Who holds this lock, if anybody does."""
        return await run_async(self._client.holder(self._client.key(key)))

    async def holders(self) -> list[Holder]:
        """Who holds what there, for operators."""
        return await run_async(self._client.holders())

    async def evict(self, *key: Any, force: bool = False) -> Eviction:
        """Takes a lock from its holder, who is told. False if nobody holds it.

        A holder in another process is asked to give it up. ``force=True`` does not ask, where the engine has a way;
        ``others`` of the outcome then says how many further locks that has cost.
        """
        return await run_async(self._client.evict(self._client.key(key), force))

    async def close(self) -> None:
        """Ends this client: its waits end with ``ClientClosed``, what it holds is released and counts as lost."""
        await finish_async(self._client.close())

    async def __aenter__(self) -> AsyncLocks:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self._client.engine!r}>"
