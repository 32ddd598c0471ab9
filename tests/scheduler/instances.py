"""A scheduler in a process of its own, and what its handlers leave behind: ``instances.py URL FOLDER OPTIONS``."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from holdfast.scheduler import ACTION_DISPATCHERS, Execution, NotNow, Scheduler
from holdfast.testing import PATIENCE
from waiting import wait_until


class Effects:
    """What handlers have done, one line each, by whichever process. Gates hold handlers up until they are opened."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)

    def add(self, kind: str, execution: Execution, **more: Any) -> None:
        run = execution.run
        line = {
            "kind": kind, "action": run.action_id, "run": run.id, "for": run.scheduled_for.isoformat(),
            "pid": os.getpid(), "attempt": run.attempt, "key": run.idempotency_key, "at": time.time(),
            "payload": run.payload, **more,
        }  # fmt: skip
        with open(self.folder / "log", "a") as log:
            log.write(json.dumps(line) + "\n")  # one write to a file opened to append: lines do not mix

    def all(self, kind: str | None = None) -> list[dict[str, Any]]:
        try:
            *whole, _being_written = (self.folder / "log").read_text().split("\n")  # a reader may see half of a write
        except FileNotFoundError:
            return []
        found = [json.loads(line) for line in whole]
        return [effect for effect in found if kind in (None, effect["kind"])]

    def open_gate(self, name: str = "gate") -> None:
        (self.folder / name).touch()

    def gate_is_open(self, name: str = "gate") -> bool:
        return (self.folder / name).exists()

    def wait_for(self, kind: str, count: int = 1) -> list[dict[str, Any]]:
        wait_until(lambda: len(self.all(kind)) >= count, f"{count} × {kind}; there are {self.all()}")
        return self.all(kind)


def add_handlers(effects: Effects) -> None:
    async def record(execution: Execution) -> dict[str, Any]:
        effects.add("ran", execution)
        return {"pid": os.getpid()}

    async def hold(execution: Execution) -> dict[str, Any]:
        """Until the gate is opened."""
        effects.add("began", execution)
        last_turn = time.time()
        try:
            while not effects.gate_is_open():
                last_turn = time.time()
                await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            effects.add("lost" if execution.lost else "cancelled", execution, last_turn=last_turn)
            raise
        effects.add("ended", execution)
        return {"pid": os.getpid()}

    def hold_in_thread(execution: Execution) -> dict[str, Any]:
        effects.add("began", execution)
        while not effects.gate_is_open():
            time.sleep(0.01)
        effects.add("ended", execution)
        return {"pid": os.getpid()}

    async def fail(execution: Execution) -> None:
        effects.add("failed", execution)
        raise RuntimeError("as it was told")

    async def die(execution: Execution) -> None:
        effects.add("died", execution)
        os.kill(os.getpid(), signal.SIGKILL)

    handlers = {"record": record, "hold": hold, "hold_in_thread": hold_in_thread, "fail": fail, "die": die}
    ACTION_DISPATCHERS.update(handlers)


class Instance:
    """The parent's end."""

    def __init__(self, url: str, effects: Effects, options: dict[str, Any]) -> None:
        command = [sys.executable, __file__, url, str(effects.folder), json.dumps(options)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        assert self._process.stdout is not None
        self.said = self._process.stdout.readline().strip()
        assert self.said == "ready", self.said

    @property
    def pid(self) -> int:
        return self._process.pid

    def signal(self, number: int) -> None:
        self._process.send_signal(number)

    def ask(self, word: str) -> Any:
        self.tell(word)
        return self.answer()

    def tell(self, word: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(word + "\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def wait(self) -> int:
        return self._process.wait(PATIENCE)

    def kill(self) -> None:
        self._process.kill()
        for end in (self._process.stdin, self._process.stdout):
            assert end is not None
            try:
                end.close()
            except BrokenPipeError:
                pass
        self._process.wait()


async def until(moment: float) -> None:
    while time.time() < moment:  # noqa: ASYNC110
        await asyncio.sleep(0)


async def main(url: str, folder: str, options: dict[str, Any]) -> None:
    effects = Effects(Path(folder))
    add_handlers(effects)
    grace = options.pop("grace", 30.0)
    started = options.pop("started", True)
    scheduler = Scheduler(url, **options)
    loop = asyncio.get_running_loop()
    ending = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, ending.set)
    if started:
        await scheduler.start()
    lines: asyncio.Queue[str] = asyncio.Queue()
    loop.add_reader(sys.stdin.fileno(), lambda: lines.put_nowait(sys.stdin.readline().strip()))
    print("ready", flush=True)

    async def serve() -> None:
        while line := await lines.get():
            word, *rest = line.split()
            answer: Any = None
            if word == "health":
                answer = vars(scheduler.health()) | vars(scheduler.statistics)
            elif word == "execute":  # all processes at the same moment
                action = await scheduler.get(int(rest[0]))
                await until(float(rest[1]))
                await scheduler._execute_action(action)
                answer = sorted(scheduler._running_actions)
            elif word == "trigger":
                await until(float(rest[1]))
                try:
                    answer = (await scheduler.trigger(int(rest[0]))).state
                except NotNow:
                    answer = "NotNow"
            elif word == "fire":
                await until(float(rest[1]))
                answer = [run.action_id for run in await scheduler.fire(rest[0])]
            print(json.dumps(answer), flush=True)

    serving = asyncio.create_task(serve())
    waiting = asyncio.create_task(ending.wait())
    await asyncio.wait([serving, waiting], return_when=asyncio.FIRST_COMPLETED)
    loop.remove_reader(sys.stdin.fileno())
    for task in (serving, waiting):
        task.cancel()
    stopping = asyncio.create_task(scheduler.stop(grace))
    await asyncio.sleep(0)  # it claims nothing more
    print(json.dumps("stopping"), flush=True)
    await stopping


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3])))
