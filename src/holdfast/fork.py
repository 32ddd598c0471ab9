"""What a forked child must forget: nothing its parent held is the child's, and no mutex may stay shut.

A child inherits a copy of all memory but only the forking thread. A mutex that another thread held at that moment would
stay locked for ever in the child, and a table of held locks would claim what only the parent has. Whoever keeps such
state registers here how to start afresh.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from types import MethodType
from typing import Any
from weakref import WeakMethod, ref

process: object = object()
"""Stands for this process; another object after a fork. Cheaper than asking for the pid, and never reused.

To be read as ``fork.process``: a name imported from here would stay the parent's.
"""
# By the id of the weak reference: threads add and remove at once, and removing from a list would search it.
_resets: dict[int, Callable[[], Callable[[], None] | None]] = {}


def in_child(reset: Callable[[], None]) -> None:
    """Has every forked child call ``reset`` first thing. A method is held weakly, a function for good."""
    weak: Any = WeakMethod(reset, _forget) if isinstance(reset, MethodType) else lambda: reset
    _resets[id(weak)] = weak


def _forget(dead: ref[Any]) -> None:
    _resets.pop(id(dead), None)


def _start_afresh() -> None:
    global process
    process = object()
    for weak in list(_resets.values()):
        reset = weak()
        if reset is not None:
            reset()


os.register_at_fork(after_in_child=_start_afresh)
# What lives as long as its module dies when `weakref` is half gone already, and must not call back then.
atexit.register(_resets.clear)
