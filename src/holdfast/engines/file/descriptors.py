"""Descriptors that a forked child does not keep.

A flock belongs to the open file, which a forked child shares: a child that lived on would keep the lock of a parent
that was killed. So every descriptor is known here from the moment it exists, and closed in the child first thing. (The
child must only *close*: unlocking would unlock the parent's, too.) Programs that are executed inherit none of them.
"""

from __future__ import annotations

import os
import socket
from threading import RLock

# Re-entrant: the garbage collector may end an abandoned block, and so close its files, in a thread that is in here.
_mutex = RLock()
_open: set[int] = set()


def open_file(path: str) -> int:
    with _mutex:
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
        except FileNotFoundError:
            # Only now O_CREAT: Linux refuses it for files of other users in world-writable folders.
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        _open.add(descriptor)
        return descriptor


def open_socket() -> int:
    with _mutex:
        descriptor = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM).detach()
        _open.add(descriptor)
        return descriptor


def close(descriptor: int) -> None:
    with _mutex:
        _open.discard(descriptor)
        os.close(descriptor)


def count() -> int:
    """How many are open."""
    return len(_open)


def _shut_out_forks() -> None:
    _mutex.acquire()


def _let_forks_in() -> None:
    _mutex.release()


def _close_inherited() -> None:
    global _mutex
    _mutex = RLock()
    for descriptor in _open:
        try:
            os.close(descriptor)
        except OSError:
            pass  # closed by whoever forked, between fork and here
    _open.clear()


os.register_at_fork(before=_shut_out_forks, after_in_parent=_let_forks_in, after_in_child=_close_inherited)
