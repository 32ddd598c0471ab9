"""Redis servers that a test starts, stops, freezes and kills as it likes."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import Any
from urllib.parse import quote

import redis
from sight import Database, free_port, wait_until

from holdfast.embedded._programs import redis_server


class OwnServer:
    def __init__(self, folder: Path, *, environment: dict[str, str] | None = None, **settings: str) -> None:
        folder.mkdir(exist_ok=True)
        self.port = free_port()
        self._folder = folder
        self._environment = {**os.environ, **(environment or {})}
        self._settings = {"appendonly": "no", "save": "", **settings}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def socket(self) -> str:
        return str(self._folder / "redis.sock")

    @property
    def url(self) -> str:
        password = self._settings.get("requirepass")
        return f"unix://{f':{quote(password)}@' if password else ''}{self.socket}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        command = [str(redis_server()), "--port", str(self.port), "--bind", "127.0.0.1"]
        command += ["--unixsocket", self.socket, "--dir", str(self._folder), "--daemonize", "no"]
        for name, value in self._settings.items():
            command += [f"--{name}", *(value.split() or [""])]
        with open(self._folder / "log", "ab") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, env=self._environment)
        try:
            wait_until(self._answers, "the server does not answer")
        except AssertionError:
            self.stop(signal.SIGKILL)
            raise

    def client(self) -> Any:
        return redis.Redis.from_url(self.url, decode_responses=True)

    def database(self) -> Database:
        return Database(self.client())

    def freeze(self) -> None:
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def stop(self, how: int = signal.SIGTERM) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(signal.SIGCONT)
            process.send_signal(how)
            process.wait()

    def restart(self, how: int = signal.SIGTERM) -> None:
        self.stop(how)
        self.start()

    @staticmethod
    def can_start_with(environment: dict[str, str]) -> bool:
        """Whether the program runs at all in that environment."""
        command = [str(redis_server()), "--version"]
        try:
            return (
                subprocess.run(command, env={**os.environ, **environment}, capture_output=True, timeout=10).returncode
                == 0
            )
        except subprocess.TimeoutExpired:
            return False

    def _answers(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, (self._folder / "log").read_text()
        try:
            with self.client() as client:
                return bool(client.ping())
        except redis.RedisError:
            return False

    def __enter__(self) -> OwnServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop(signal.SIGKILL)
