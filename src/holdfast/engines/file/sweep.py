"""Removes lock files that nobody has used for long, or a folder of ``sync:{user_id}`` locks would grow for ever.

Removing a lock file is safe under its own lock: whoever waits for it compares inodes when it gets it, and opens anew.
"""

from __future__ import annotations

import itertools
import os
import time
from typing import Final

from ..fence import next_fence
from .grip import take
from .names import LOCK, names

UNUSED_SECONDS: Final = 24 * 3600
_AT_MOST: Final = 256


def sweep(folder: str, folder_id: bytes, unused: float = UNUSED_SECONDS) -> int:
    """Removes what was not used for ``unused`` seconds, a bounded number of files at a time. Returns how many."""
    swept, before = 0, time.time() - unused
    with os.scandir(folder) as entries:
        old = [e.name for e in itertools.islice(entries, _AT_MOST) if e.name.endswith(LOCK) and _is_older(e, before)]
    for name in old:
        of_lock = names(folder, folder_id, name.removesuffix(LOCK))
        try:
            grip = take(of_lock, block=False)
            if grip is None:
                continue
            try:
                # A fence ahead of the clock (which was set back) is known to nobody but the file.
                if grip.last_fence() < next_fence(0):
                    os.unlink(of_lock.lock)
                    swept += 1
            finally:
                grip.release()
        except OSError:
            continue  # another user's file, or gone: not ours to tidy
    return swept


def _is_older(entry: os.DirEntry[str], before: float) -> bool:
    try:
        return entry.stat(follow_symlinks=False).st_mtime < before
    except OSError:
        return False
