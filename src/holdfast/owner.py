"""Who holds a lock: the asyncio task that runs right now, else the thread. An object, never an id that can be reused.

Work that is spawned inside a block is somebody else: a context variable would be inherited by it, so none is used.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakSet

from . import fork

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    from .ticket import Ticket


class Owner:
    """One thread or task, and what it holds: lock id to ticket, in the order in which they were taken."""

    __slots__ = ("__weakref__", "held", "loop", "name")

    def __init__(self, name: str, loop: AbstractEventLoop | None = None) -> None:
        self.name = name
        self.loop = loop
        self.held: dict[Hashable, Ticket] = {}

    def __repr__(self) -> str:
        return f"<Owner {self.name}>"


class _ThreadOwner(threading.local):
    # One object for each thread, made on its first use. `threading.current_thread()` would not do: a thread that
    # Python did not start may be given the stand-in object of a dead one.
    def __init__(self) -> None:
        self.owner = Owner(f"thread {threading.current_thread().name}")


_threads = _ThreadOwner()
_tasks: WeakKeyDictionary[Any, Owner] = WeakKeyDictionary()
_of_loop: WeakKeyDictionary[Any, WeakSet[Owner]] = WeakKeyDictionary()


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
    owner = _tasks.get(task)
    if owner is None:
        owner = _tasks[task] = Owner(f"task {task.get_name()}", loop)
        _of_loop.setdefault(loop, WeakSet()).add(owner)
    return owner


def holder_in_loop(loop: AbstractEventLoop, lock: Hashable) -> Owner | None:
    """The task of ``loop`` (it runs in this thread) that holds ``lock``, or else the thread itself."""
    if lock in _threads.owner.held:
        return _threads.owner
    return next((owner for owner in list(_of_loop.get(loop, ())) if lock in owner.held), None)


def _forget_parent() -> None:
    global _threads
    _threads = _ThreadOwner()
    _tasks.clear()
    _of_loop.clear()


fork.in_child(_forget_parent)
