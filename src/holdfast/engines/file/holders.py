"""Who holds the locks of a folder, found out without touching a lock: others would find a probed lock busy."""

from __future__ import annotations

import os
from typing import NamedTuple

from ..base import Holder
from .grip import read_record
from .names import LOCK


class _Flocks(NamedTuple):
    """The flocks of this machine by inode, as the kernel tells them."""

    held: set[int]
    waiting: dict[int, int]

    def holds(self, path: str) -> bool:
        return _inode(path) in self.held

    def waiters(self, path: str) -> int:
        return self.waiting.get(_inode(path) or 0, 0)


class Here(NamedTuple):
    """What this process knows of one lock, by the lock's name."""

    held: bool
    waiting: int


def scan(folder: str, here: dict[str, Here]) -> list[Holder]:
    flocks = _kernel_flocks()
    with os.scandir(folder) as entries:
        found = [_holder(entry.path, flocks, here) for entry in entries if entry.name.endswith(LOCK)]
    return sorted((holder for holder in found if holder is not None), key=lambda holder: holder.since or 0)


def holder_of(path: str) -> Holder | None:
    return _holder(path, _kernel_flocks(), {})


def _holder(path: str, flocks: _Flocks | None, here: dict[str, Here]) -> Holder | None:
    record = read_record(path)
    pid = record.get("pid")
    waiting = None
    if flocks is not None:
        if not flocks.holds(path):
            return None
        waiting = _waiting(path, flocks, here)
    elif not isinstance(pid, int) or not _alive(pid):
        return None
    return Holder(
        key=record.get("key") or f"(file {os.path.basename(path)})",
        owner=record.get("owner") or "",
        pid=pid,
        host=record.get("host") or "",
        since=record.get("since"),
        note=record.get("note"),
        fence=record.get("fence"),
        waiting=waiting,
        here=pid == os.getpid(),
    )


def _waiting(path: str, flocks: _Flocks, here: dict[str, Here]) -> int:
    """All waiters of this process, and one for each other process: it has one thread in flock for all of its own."""
    in_kernel = flocks.waiters(path)
    ours = here.get(os.path.basename(path).removesuffix(LOCK))
    if ours is None:
        return in_kernel
    own_thread = 0 if ours.held else 1
    return max(0, in_kernel - own_thread) + ours.waiting


def _kernel_flocks() -> _Flocks | None:
    """None where the kernel does not tell (anything but Linux): then the records and the pids in them must do."""
    try:
        with open("/proc/locks") as file:
            lines = [line.split() for line in file]
    except OSError:
        return None
    held: set[int] = set()
    waiting: dict[int, int] = {}
    for line in lines:
        # 7: FLOCK ADVISORY WRITE 1234 fe:00:5678 0 EOF      held
        # 7: -> FLOCK ADVISORY WRITE 1234 fe:00:5678 0 EOF   waits
        waits = line[1] == "->"
        fields = line[2:] if waits else line[1:]
        if fields[0] != "FLOCK":
            continue
        inode = int(fields[4].rpartition(":")[2])
        if waits:
            waiting[inode] = waiting.get(inode, 0) + 1
        else:
            held.add(inode)
    return _Flocks(held, waiting)


def _inode(path: str) -> int | None:
    try:
        return os.stat(path).st_ino
    except FileNotFoundError:
        return None


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
