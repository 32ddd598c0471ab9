"""Who holds a lock: the asyncio task that runs right now, else the thread. An object, never an id that can be reused.

Work that is spawned inside a block is somebody else: a context variable would be inherited by it, so none is used.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any
from weakref import ref

from . import fork

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Task

    from .ticket import Ticket


class Owner:
    """One thread or task, and what it holds: lock id to ticket, in the order in which they were taken."""

    __slots__ = ("_label", "held", "loop", "task")

    def __init__(
        self, label: str, loop: AbstractEventLoop | None = None, task: Callable[[], Task[Any] | None] | None = None
    ) -> None:
        self._label = label
        self.loop = loop
        self.task = task
        """A weak reference: an engine's table leads here, and would keep alive a task whose loop was closed."""
        self.held: dict[Hashable, Ticket] = {}

    @property
    def name(self) -> str:
        return f"{'thread' if self.loop is None else 'task'} {self._label}"

    def __repr__(self) -> str:
        return f"<Owner {self.name}>"


class _ThreadOwner(threading.local):
    # One object for each thread, made on its first use. `threading.current_thread()` would not do: a thread that
    # Python did not start may be given the stand-in object of a dead one.
    def __init__(self) -> None:
        self.owner = Owner(threading.current_thread().name)


_threads = _ThreadOwner()
_tasks: dict[int, Owner] = {}
"""By the id of the task. An entry goes when its task does; until then the id is not given to another."""


def running_loop() -> AbstractEventLoop | None:
    """The event loop that runs in this thread. Does not import asyncio: without it there is none."""
    asyncio = sys.modules.get("asyncio")
    loop: AbstractEventLoop | None = asyncio._get_running_loop() if asyncio is not None else None
    return loop


def current(loop: AbstractEventLoop | None) -> Owner:
    """Who runs right now; ``loop`` is the running loop."""
    if loop is None:
        return _threads.owner
    task = sys.modules["asyncio"].current_task(loop)
    if task is None:  # a callback of the loop
        return _threads.owner
    number = id(task)
    owner = _tasks.get(number)
    if owner is None or owner.task is None or owner.task() is not task:
        owner = _tasks[number] = Owner(task.get_name(), loop, _TaskRef(task, _forget))
    return owner


class _TaskRef(ref[Any]):
    __slots__ = ("number",)

    def __init__(self, task: Any, callback: Callable[[_TaskRef], None]) -> None:
        super().__init__(task, callback)  # type: ignore[call-arg]
        self.number = id(task)


def _forget(reference: _TaskRef) -> None:
    _tasks.pop(reference.number, None)


def holder_in_loop(loop: AbstractEventLoop, lock: Hashable) -> Owner | None:
    """The task of ``loop`` (it runs in this thread) that holds ``lock``, or else the thread itself."""
    if lock in _threads.owner.held:
        return _threads.owner
    return next((owner for owner in list(_tasks.values()) if owner.loop is loop and lock in owner.held), None)


def _forget_parent() -> None:
    global _threads
    _threads = _ThreadOwner()
    _tasks.clear()


fork.in_child(_forget_parent)
