"""Who holds the locks of a folder, found out without touching a lock: a probe with flock would make others find it busy."""

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


def scan(folder: str) -> list[Holder]:
    flocks = _kernel_flocks()
    paths = (entry.path for entry in os.scandir(folder) if entry.name.endswith(LOCK))
    found = (_holder(path, flocks) for path in paths)
    return sorted((holder for holder in found if holder is not None), key=lambda holder: holder.since or 0)


def holder_of(path: str) -> Holder | None:
    return _holder(path, _kernel_flocks())


def _holder(path: str, flocks: _Flocks | None) -> Holder | None:
    record = read_record(path)
    pid = record.get("pid")
    if flocks is None:
        if not isinstance(pid, int) or not _alive(pid):
            return None
        waiting = None
    else:
        try:
            inode = os.stat(path).st_ino
        except FileNotFoundError:
            return None
        if inode not in flocks.held:
            return None
        waiting = flocks.waiting.get(inode, 0) + (0 if record else 1)
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


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
