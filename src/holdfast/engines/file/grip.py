"""Taking one lock from the kernel, and giving it back."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import sys
import time
from io import FileIO
from threading import Lock
from typing import Any, Final

from ...ticket import Ticket
from ..fence import next_fence
from . import descriptors
from .names import Names

_FENCE_DIGITS: Final = 20
_RECORD_BYTES: Final = 65536
_HAS_ABSTRACT_SOCKETS: Final = sys.platform == "linux"
_GUARD_POLL: Final = 0.005
_GUARD_LINGERS: Final = 0.05
"""How long a try waits for a guard alone: a program that is being started keeps a copy until it runs."""


class Grip:
    """The open files of a held lock."""

    __slots__ = ("_guard", "_lock", "_mutex")

    def __init__(self, lock: FileIO) -> None:
        self._lock = lock
        self._guard: socket.socket | None = None
        self._mutex = Lock()

    def take_guard(self, name: bytes, block: bool) -> bool:
        held, self._guard = _take_guard(name, block)
        return held

    def stamp(self, ticket: Ticket) -> None:
        """Gives the grant its fence and writes down who holds the lock, for operators.

        Not if the ticket was evicted meanwhile: the descriptor may be another file's by now, and the next holder's
        fence must be the greater one.
        """
        with self._mutex:
            if not self._lock.closed and ticket.held:
                self._write(self._lock.fileno(), ticket)

    def last_fence(self) -> int:
        """The last one given out for this lock; 0 if there is none, or the file is full of nonsense."""
        last = b"" if self._lock.closed else os.pread(self._lock.fileno(), _FENCE_DIGITS, 0)
        return int(last) if last.isdigit() else 0

    def _write(self, lock: int, ticket: Ticket) -> None:
        fence = next_fence(self.last_fence())
        ticket.fence = fence
        record = {
            "key": ticket.key.text,
            "pid": os.getpid(),
            "host": socket.gethostname(),
            "owner": ticket.owner.name[:1000] if ticket.owner is not None else "",
            "since": ticket.since,
            "note": ticket.note[:1000] if ticket.note else None,
        }
        text = f"{fence:0{_FENCE_DIGITS}d}\n{json.dumps(record)}\n".encode()
        os.pwrite(lock, text, 0)
        os.ftruncate(lock, len(text))

    def release(self) -> None:
        """Gives the lock back; a second time finds nothing to do, or what Ctrl-C left to do.

        The fence stays in the file; the guard goes first, or the next one would run into it.
        """
        with self._mutex:
            if self._guard is not None:
                descriptors.close(self._guard)
            try:
                if not self._lock.closed:
                    os.ftruncate(self._lock.fileno(), _FENCE_DIGITS + 1)
                    # Not by closing alone: a child forked behind Python's back would keep the lock.
                    fcntl.flock(self._lock, fcntl.LOCK_UN)
            finally:
                descriptors.close(self._lock)

    def drop(self) -> None:
        """Gives up what was taken half-way."""
        if self._guard is not None:
            descriptors.close(self._guard)
        descriptors.close(self._lock)


def take(names: Names, *, block: bool) -> Grip | None:
    """Takes the lock; None if it is busy and ``block`` is false. A call that blocks does so without limit."""
    lock = _take_lock_file(names.lock, block)
    if lock is None:
        return None
    try:
        grip = Grip(lock)
    except BaseException:
        descriptors.close(lock)  # not left to its end: a traceback may keep it for long
        raise
    try:
        if grip.take_guard(names.guard, block):
            return grip
    except BaseException:
        grip.drop()
        raise
    grip.drop()
    return None


def read_record(path: str) -> dict[str, Any]:
    """What the holder wrote about itself; empty if nobody did, or it is being written right now."""
    try:
        with open(path, "rb") as file:
            fence, _, record = file.read(_RECORD_BYTES).partition(b"\n")
        return {**json.loads(record), "fence": int(fence)}
    except (OSError, ValueError, TypeError):
        return {}


def _take_lock_file(path: str, block: bool) -> FileIO | None:
    while True:
        lock = descriptors.open_file(path)
        try:
            if not _flock(lock, block):
                descriptors.close(lock)
                return None
            if _is_still(lock, path):
                return lock
        except BaseException:
            descriptors.close(lock)
            raise
        # Unlinked, and perhaps made anew, while we waited: what we have locked is not the lock any more.
        descriptors.close(lock)


def _flock(lock: FileIO, block: bool) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX if block else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_still(lock: FileIO, path: str) -> bool:
    try:
        there = os.stat(path, follow_symlinks=False)
    except FileNotFoundError:
        return False
    ours = os.fstat(lock.fileno())
    return (ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino)


def _take_guard(name: bytes, block: bool) -> tuple[bool, socket.socket | None]:
    """Binds the kernel name that goes with the lock: whether we have it, and the socket that does.

    A lock file that is unlinked *while it is held*, and made anew, would give a second holder: the first one's flock is
    on a file that nobody can find any more. The name cannot be unlinked, so the second one finds it taken. Only this
    rare case polls. Where there are no abstract sockets, or none may be made, the lock does without.
    """
    if not _HAS_ABSTRACT_SOCKETS:
        return True, None
    try:
        guard = descriptors.open_socket()
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
            raise
        return True, None
    give_up = time.monotonic() + _GUARD_LINGERS
    try:
        while True:
            try:
                guard.bind(name)
                return True, guard
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
            if not block and time.monotonic() > give_up:
                break
            time.sleep(_GUARD_POLL if block else _GUARD_POLL / 20)
    except BaseException:
        descriptors.close(guard)
        raise
    descriptors.close(guard)
    return False, None
