"""A process whose threads and tasks want the same few locks, in a hurry: ``chaos_member.py URL BOARD SEED OPTIONS``.

Works until a line comes in, whatever happens to it. Then it says what it did, and what went wrong.
"""

from __future__ import annotations

import asyncio
import json
import mmap
import random
import signal
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Callable
from functools import partial
from itertools import count
from os import getpid
from typing import Any

from holdfast import AsyncLocks, BackendUnavailable, LockLost, Locks, NotAcquired
from holdfast.testing import Stopwatch

KEYS = 6
WAITS = (0.0, 0.001, 0.005, 0.02, 0.2, 2.0)
BODIES = (0.0, 0.0, 0.001, 0.003)
STUCK = 5.0
"""Nothing here takes that much longer than it would wait, unless it waits for somebody who is gone."""


class Board:
    """Where each holder leaves its mark, for all processes to see."""

    def __init__(self, path: str) -> None:
        with open(path, "r+b") as file:
            self._marks = mmap.mmap(file.fileno(), 0)
        self._numbers = count(1)

    def mark(self, key: int) -> bytes:
        mark = b"%08d%08d" % (getpid() % 10**8, next(self._numbers))
        self._marks[16 * key : 16 * key + 16] = mark
        return mark

    def bears(self, key: int, mark: bytes) -> bool:
        return self._marks[16 * key : 16 * key + 16] == mark


class Member:
    def __init__(self, url: str, board: str, seed: int, options: dict[str, Any]) -> None:
        self._url, self._seed, self._options = url, seed, options
        self._board = Board(board)
        self._stop = threading.Event()
        self._locks = Locks.from_url(url, **options)
        self.did: Counter[str] = Counter()
        self.wrong: list[str] = []

    def work(self) -> None:
        threads = [threading.Thread(target=self._hurry, args=[number]) for number in range(4)]
        threads += [threading.Thread(target=asyncio.run, args=[self._hurry_as_tasks(number)]) for number in (10, 20)]
        for thread in threads:
            thread.start()
        threading.Thread(target=self._until_told, daemon=True).start()
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # until it is waited for
        print("ready", flush=True)
        while not self._stop.is_set():
            try:
                signal.signal(signal.SIGINT, signal.default_int_handler)
                self._hurry(30)  # the one thread that Ctrl-C strikes
            except KeyboardInterrupt:
                self.did["interrupted"] += 1
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        for thread in threads:
            thread.join()
        self._locks.close()

    def _until_told(self) -> None:
        sys.stdin.readline()
        self._stop.set()

    def _hurry(self, number: int) -> None:
        dice = random.Random(self._seed + number)
        while not self._stop.is_set():
            key, wait = dice.randrange(KEYS), dice.choice(WAITS)
            self._judge(wait, partial(self._hold, key, wait, dice))

    def _hold(self, key: int, wait: float, dice: random.Random) -> None:
        with self._locks.hold(7, key, wait=wait) as held:
            mark = self._board.mark(key)
            threading.Event().wait(dice.choice(BODIES))
            self._leave(key, mark, held)

    def _leave(self, key: int, mark: bytes, held: Any) -> None:
        alone = self._board.bears(key, mark)
        held.check()
        if not alone:
            self.wrong.append(f"{held.key}: two holders, and neither has lost it")
        self.did["held"] += 1

    def _judge(self, wait: float, attempt: Callable[[], None]) -> None:
        watch = Stopwatch()
        try:
            attempt()
        except Exception as error:
            self._note(error)
        if watch.awake > wait + STUCK:
            self.wrong.append(f"a wait of {wait} s took {watch.awake:.1f} s")

    def _note(self, error: BaseException) -> None:
        if not isinstance(error, NotAcquired | LockLost | BackendUnavailable | asyncio.CancelledError):
            self.wrong.append("".join(traceback.format_exception(error)))
        self.did[type(error).__name__] += 1

    async def _hurry_as_tasks(self, number: int) -> None:
        async with AsyncLocks.from_url(self._url, **self._options) as locks:
            await asyncio.gather(*(self._hurry_as_task(locks, number + task) for task in range(6)))

    async def _hurry_as_task(self, locks: AsyncLocks, number: int) -> None:
        dice = random.Random(self._seed + number)
        while not self._stop.is_set():
            key, wait = dice.randrange(KEYS), dice.choice(WAITS)
            watch = Stopwatch()
            holding = asyncio.ensure_future(self._hold_as_task(locks, key, wait, dice))
            if dice.random() < 0.3:
                await asyncio.sleep(dice.choice((0.0, 0.0005, 0.002, 0.01)))
                holding.cancel()
            (outcome,) = await asyncio.gather(holding, return_exceptions=True)
            if outcome is not None:
                self._note(outcome)
            if watch.awake > wait + STUCK:
                self.wrong.append(f"a task's wait of {wait} s took {watch.awake:.1f} s")

    async def _hold_as_task(self, locks: AsyncLocks, key: int, wait: float, dice: random.Random) -> None:
        async with locks.hold(7, key, wait=wait) as held:
            mark = self._board.mark(key)
            await asyncio.sleep(dice.choice(BODIES))
            self._leave(key, mark, held)


if __name__ == "__main__":
    member = Member(sys.argv[1], sys.argv[2], int(sys.argv[3]), json.loads(sys.argv[4]))
    member.work()
    print(json.dumps({"did": member.did, "wrong": member.wrong[:5]}), flush=True)
