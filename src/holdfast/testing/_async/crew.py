"""Tasks that work side by side in a test. Its mirror does the same with threads."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Coroutine
from types import TracebackType
from typing import Any, Generic, TypeVar

from ..._async.locks import AsyncLocks
from ..target import PATIENCE, open_engine

T = TypeVar("T")


def asynchronous(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Runs a test in an event loop of its own; needs no plugin."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **kwargs), 3 * PATIENCE))

    return run


def open_locks(target: str, **options: Any) -> AsyncLocks:
    return AsyncLocks(open_engine(target), **options)


async def pause(seconds: float) -> None:
    await asyncio.sleep(seconds)


class Flag:
    """Something that happens once."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def raise_(self) -> None:
        self._event.set()

    @property
    def raised(self) -> bool:
        return self._event.is_set()

    async def wait(self) -> None:
        await asyncio.wait_for(self._event.wait(), PATIENCE)


class Job(Generic[T]):
    collected = False

    def __init__(self, work: Awaitable[T]) -> None:
        self._task = asyncio.ensure_future(work)

    async def result(self) -> T:
        self.collected = True
        return await asyncio.wait_for(asyncio.shield(self._task), PATIENCE)

    @property
    def done(self) -> bool:
        return self._task.done()


class Crew:
    """Starts jobs; leaving its block waits for those whose result nobody asked for, and raises their errors."""

    def __init__(self) -> None:
        self._jobs: list[Job[Any]] = []

    def start(self, function: Callable[..., Awaitable[T]], *args: Any) -> Job[T]:
        job = Job(function(*args))
        self._jobs.append(job)
        return job

    async def __aenter__(self) -> Crew:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for job in self._jobs:
            if error is None and not job.collected:
                await job.result()
            elif error is not None:
                job._task.cancel()
