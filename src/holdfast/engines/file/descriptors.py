"""Open files and sockets that a forked child does not keep, and that no Ctrl-C leaves open.

A flock belongs to the open file, which a forked child shares: a child that lived on would keep the lock of a parent
that was killed. So every one is known here from the moment it exists, and closed in the child first thing. (The child
must only *close*: unlocking would unlock the parent's, too.) Programs that are executed inherit none of them.

Objects, not numbers: they can be closed twice without closing somebody else's, and one that gets lost on its way,
since Ctrl-C struck between two steps, is closed with its object.
"""

from __future__ import annotations

import os
from io import FileIO
from socket import AF_UNIX, SOCK_DGRAM
from socket import socket as Socket
from threading import RLock
from weakref import WeakSet

# Re-entrant: the garbage collector may end an abandoned block, and so close its files, in a thread that is in here.
_mutex = RLock()
_open: WeakSet[FileIO | Socket] = WeakSet()


def open_file(path: str) -> FileIO:
    with _mutex:
        file = FileIO(path, "r+", opener=_open_or_create)
        _open.add(file)
        return file


def _open_or_create(path: str, flags: int) -> int:
    try:
        return os.open(path, flags | os.O_NOFOLLOW)
    except FileNotFoundError:
        # Only now O_CREAT: Linux refuses it for files of other users in world-writable folders.
        return os.open(path, flags | os.O_CREAT | os.O_NOFOLLOW, 0o666)


def open_socket() -> Socket:
    with _mutex:
        socket = Socket(AF_UNIX, SOCK_DGRAM)
        _open.add(socket)
        return socket


def close(opened: FileIO | Socket) -> None:
    with _mutex:
        opened.close()
        _open.discard(opened)


def count() -> int:
    """How many are open."""
    return len(_open)


def _shut_out_forks() -> None:
    _mutex.acquire()


def _let_forks_in() -> None:
    _mutex.release()


def _close_inherited() -> None:
    global _mutex, _open
    _mutex = RLock()
    inherited, _open = list(_open), WeakSet()
    for opened in inherited:
        try:
            opened.close()
        except OSError:
            pass  # closed by whoever forked, between fork and here


os.register_at_fork(before=_shut_out_forks, after_in_parent=_let_forks_in, after_in_child=_close_inherited)
