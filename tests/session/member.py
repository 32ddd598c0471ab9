"""A process that takes session locks on command: ``python member.py URL``. One line in, one line out, both JSON.

And what tests of several of them wait for.
"""

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from holdfast import LockError, SessionLock, check_session_lock_health
from holdfast.testing import PATIENCE


class Member:
    """The parent's end."""

    def __init__(self, url: str) -> None:
        self.url = url
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        command = [sys.executable, os.path.abspath(__file__), url]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        assert self.answer() == "ready"

    def send(self, *words: Any) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(words) + "\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def ask(self, *words: Any) -> Any:
        self.send(*words)
        return self.answer()

    async def take_for_long(self, session_key: str) -> int:
        """Has it take the lock for longer than the test lasts, even on a machine that stands still."""
        while True:
            fence = await self.ask_async("acquire", session_key, 0)
            if await self.ask_async("extend", session_key, 60) is True:  # else it ran out in between
                return int(fence)

    async def ask_async(self, *words: Any) -> Any:
        return await asyncio.to_thread(self.ask, *words)

    def stop(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        self._process.kill()
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.close()
        except BrokenPipeError:
            pass
        self._process.stdout.close()
        self._process.wait()


async def until(condition: Callable[[], Any], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while True:
        outcome = condition()
        if await outcome if asyncio.iscoroutine(outcome) else outcome:
            return
        assert time.monotonic() < deadline, what
        await asyncio.sleep(0.002)


async def until_waiting(lock: SessionLock, session_key: str, number: int) -> None:
    async def waiting() -> bool:
        holder = await lock.locks.holder(lock.key(session_key))
        return holder is not None and holder.waiting == number

    await until(waiting, f"{number} waiters")


async def main(url: str) -> None:
    lock = SessionLock(url, lock_timeout=1)
    turn: Any = None
    leave = asyncio.Event()

    async def take_turn(key: str, wait: float, fence: asyncio.Future[int | None]) -> None:
        async with lock.acquire(key, wait) as held:
            fence.set_result(held and held.fence)
            await leave.wait()

    async def obey(verb: str, *words: Any) -> Any:
        nonlocal turn
        match verb:
            case "acquire":  # in a task of its own: a loss cancels it
                fence = asyncio.get_running_loop().create_future()
                turn = asyncio.create_task(take_turn(*words, fence))
                return await fence
            case "leave":
                leave.set()
                await turn
                return "left"
            case "extend":
                return await lock.extend(*words)
            case "extend by token":
                key, seconds, token = words
                return await lock.extend(key, seconds, token=token)
            case "acquire detached":
                key, owner, seconds = words
                return asdict(await lock.acquire_detached(key, 0, owner=owner, lock_timeout=seconds))
            case "release":
                return await lock.release(*words)
            case "probe for ever":

                async def never(*key: Any) -> None:
                    print(json.dumps("amid"), flush=True)
                    await asyncio.Event().wait()

                lock.locks.holder = never  # type: ignore[assignment]
                return await check_session_lock_health(lock, timeout=PATIENCE)
            case "append":
                key, path, times = words
                async with SessionLock(url) as lasting:
                    for _ in range(times):
                        async with lasting.acquire(key, 30) as acquired:
                            assert acquired
                            for what in ("start", "end"):
                                with open(path, "a") as file:
                                    file.write(f"{what} {os.getpid()}\n")
                                await asyncio.sleep(0)
                return "done"
        raise ValueError(verb)

    print(json.dumps("ready"), flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        try:
            outcome = await obey(*json.loads(line))
        except LockError as error:
            outcome = type(error).__name__
        print(json.dumps(outcome), flush=True)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
