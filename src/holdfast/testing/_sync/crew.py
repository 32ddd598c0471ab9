"""Threads that work side by side in a test. Its mirror does the same with tasks."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Generic, TypeVar

from ..._sync.locks import Locks
from ..target import PATIENCE, open_engine

T = TypeVar("T")


def synchronous(test: Callable[..., None]) -> Callable[..., None]:
    """Runs a test as it is; its mirror needs an event loop."""
    return test


def open_locks(target: str, **options: Any) -> Locks:
    return Locks(open_engine(target), **options)


def pause(seconds: float) -> None:
    time.sleep(seconds)


class Flag:
    """Something that happens once."""

    def __init__(self) -> None:
        self._event = threading.Event()

    def raise_(self) -> None:
        self._event.set()

    @property
    def raised(self) -> bool:
        return self._event.is_set()

    def wait(self) -> None:
        assert self._event.wait(PATIENCE), "what the test waits for did not happen"


class Job(Generic[T]):
    collected = False

    def __init__(self, function: Callable[..., T], args: tuple[Any, ...]) -> None:
        self._result: T
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(function, args), daemon=True)
        self._thread.start()

    def _run(self, function: Callable[..., T], args: tuple[Any, ...]) -> None:
        try:
            self._result = function(*args)
        except BaseException as error:
            self._error = error

    def result(self) -> T:
        self.collected = True
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive(), "a thread of the test did not end"
        if self._error is not None:
            raise self._error
        return self._result

    @property
    def done(self) -> bool:
        return not self._thread.is_alive()


class Crew:
    """Starts jobs; leaving its block waits for those whose result nobody asked for, and raises their errors."""

    def __init__(self) -> None:
        self._jobs: list[Job[Any]] = []

    def start(self, function: Callable[..., T], *args: Any) -> Job[T]:
        job = Job(function, args)
        self._jobs.append(job)
        return job

    def __enter__(self) -> Crew:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for job in self._jobs:
            if error is None and not job.collected:
                job.result()
