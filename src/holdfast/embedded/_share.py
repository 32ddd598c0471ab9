"""The lock files by which processes share one server.

Who is alive is decided by the kernel alone: a flock() goes away with the last process that has the file open,
however that process ends. Process ids are never asked: they go stale and are given to others.

``start.lock``   held by the one process that looks or starts. Without it a second starter, which cannot tell the
                 first one's keeper.lock from a keeper's, could join a server that is going down with a killed keeper.
``users.lock``   shared by every user. The keeper asks for it exclusively, which it gets when the last user is gone.
``keeper.lock``  the keeper's, for its life. The starter takes it and hands it down: there is no moment in which a
                 starter killed half-way would let a second keeper in.
``server.lock``  inherited by the server and by every process the server forks: as long as one of them lives, no
                 second server may touch the data, even when keeper and main process were killed.
"""

import fcntl
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from ._error import EmbeddedError

_POLL = 0.01  # flock() knows no timeout, so waiting with a deadline means asking again


class Patience:
    """How long is waited, over several waits; and the words for saying that it was too long."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._at = time.monotonic() + seconds

    def left(self) -> float:
        return max(0.0, self._at - time.monotonic())

    def wait_for(self, attempt: Callable[[], bool], otherwise: str) -> None:
        """Repeat `attempt` until it succeeds; past the deadline raise, saying `otherwise`."""
        while not attempt():
            self.pause(otherwise)

    def pause(self, otherwise: str, details: Callable[[], str] = str) -> None:
        if not self.left():
            raise EmbeddedError(f"{otherwise} (waited {self._seconds:g} s)\n{details()}".rstrip())
        time.sleep(min(_POLL, self.left()))


class LockFile:
    """An open lock file. Closing it, or the end of the process, gives the lock back.

    A forked child never keeps it: the child's copy would hold the lock on after the parent has died.
    """

    def __init__(self, fd_of: Callable[[], int]) -> None:
        with _fork_gate:  # no fork between opening and the note that a child has to close it
            self._fd = fd_of()
            _open_here.add(self)

    def try_exclusive(self) -> bool:
        return _try_flock(self._fd, fcntl.LOCK_EX)

    def try_shared(self) -> bool:
        return _try_flock(self._fd, fcntl.LOCK_SH)

    def give_back(self) -> None:
        """Open as before, and locked no more."""
        fcntl.flock(self._fd, fcntl.LOCK_UN)

    def fileno(self) -> int:
        return self._fd

    @property
    def closed(self) -> bool:
        return self._fd < 0

    def close(self) -> None:
        with _fork_gate:
            if self._fd >= 0:
                os.close(self._fd)
            self._fd = -1
            _open_here.discard(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def open_private_file(path: Path, *, owner: tuple[int, int], extra_flags: int = 0) -> int:
    """Open (or create, 0600) a file in the server's folder; root gives it to the folder's owner.

    The folder may belong to a less privileged account: root must neither follow a link that account planted nor
    give away a file that also has a name elsewhere.
    """
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | extra_flags
    fd = os.open(path, flags, 0o600)
    try:
        status = os.fstat(fd)
        if os.geteuid() == 0 and status.st_uid == 0 and owner[0] != 0 and status.st_nlink == 1:
            os.fchown(fd, *owner)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _try_flock(fd: int, operation: int) -> bool:
    try:
        fcntl.flock(fd, operation | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


_fork_gate = threading.RLock()
_open_here: set[LockFile] = set()


def _forget_in_forked_child() -> None:
    for lock in list(_open_here):
        lock.close()  # closes the child's copy only; the parent's lock stays
    _fork_gate.release()


os.register_at_fork(
    before=_fork_gate.acquire, after_in_parent=_fork_gate.release, after_in_child=_forget_in_forked_child
)
