"""Events that could not be delivered, on disk, in order, until they can be.

One file for each, named by its number and its delivery id. Numbers are given under a lock, so they follow the order in
which the shims came. Delivering is done by one process at a time; a file goes when the server has taken it.
"""

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Final

MOST_FILES: Final = 10_000
MOST_REFUSED: Final = 100
ADD_SECONDS: Final = 0.2


class Delivery(Enum):
    TAKEN = "the server has it"
    REFUSED = "the server will never take it"
    FAILED = "not now"


class Spool:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @property
    def empty(self) -> bool:
        return not self._waiting()

    def add(self, delivery_id: str, body: bytes) -> bool:
        """Keeps an event behind those that wait. False if there is no more room: what is older is worth more."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        new = self._folder / f".new-{delivery_id}"
        file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(file, "wb") as writing:
            writing.write(body)
            writing.flush()
            os.fsync(writing.fileno())  # what may take long, before others have to wait
        # Two that get one number keep their names apart: better that than to wait for a process that stands still.
        with self._locked("adding", seconds=ADD_SECONDS):
            waiting = self._waiting()
            if len(waiting) >= MOST_FILES:
                new.unlink()
                return False
            number = int(waiting[-1].split("-")[0]) + 1 if waiting else 1
            new.rename(self._folder / f"{number:012d}-{delivery_id}")
        return True

    def deliver(self, send: Callable[[str, bytes], Delivery]) -> None:
        """Sends what waits, in order, up to the first that fails. Does nothing if somebody is at it already."""
        if self.empty:
            return
        with self._locked("delivering", seconds=0) as alone:
            if not alone:
                return
            while waiting := self._waiting():
                for name in waiting:
                    path = self._folder / name
                    outcome = send(name.partition("-")[2], path.read_bytes())
                    if outcome is Delivery.FAILED:
                        return
                    if outcome is Delivery.REFUSED:
                        self._put_aside(path)
                    else:
                        path.unlink()

    def _put_aside(self, path: Path) -> None:
        """What will never be taken must not hold up the rest. It can be looked at."""
        refused = self._folder / "refused"
        refused.mkdir(mode=0o700, exist_ok=True)
        path.rename(refused / path.name)
        for old in sorted(refused.iterdir(), key=lambda each: each.stat().st_mtime)[:-MOST_REFUSED]:
            old.unlink(missing_ok=True)

    def _waiting(self) -> list[str]:
        try:
            return sorted(name for name in os.listdir(self._folder) if name[:1].isdigit())
        except FileNotFoundError:
            return []

    @contextmanager
    def _locked(self, what: str, *, seconds: float) -> Iterator[bool]:
        """Tries for so long; the block is told whether it is alone."""
        file = os.open(self._folder / f"{what}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        deadline = time.monotonic() + seconds
        try:
            while True:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    if time.monotonic() < deadline:
                        time.sleep(0.005)
                        continue
                    yield False
                    return
                yield True
                return
        finally:
            os.close(file)
