"""A server as a person starts it: ``holdfast serve`` in a process of its own."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from holdfast.testing import PATIENCE
from waiting import wait_until

GOLDEN = Path(__file__).parent.parent / "golden"
RECORDED = [json.loads(line) for line in (GOLDEN / "hook-payloads.jsonl").read_text().splitlines()]
"""What a real client sent in one session: SessionStart, UserPromptSubmit, PreToolUse, PostToolUse, Stop, SessionEnd."""


class Running:
    def __init__(self, settings: dict[str, str], data: Path) -> None:
        self.data = data
        self.log = data.with_name(f"{data.name}-{time.monotonic_ns()}.log")
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
        environment |= {"HOLDFAST_PORT": "0", "HOLDFAST_DATA_DIR": str(data)} | settings
        with open(self.log, "wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "holdfast.cli", "serve"],
                env=environment, cwd=data.parent, stdout=subprocess.PIPE, stderr=log, text=True,
            )  # fmt: skip
        try:
            assert self.process.stdout is not None
            said = self.process.stdout.readline()
            assert said.startswith("Holdfast listens on "), said + self.log.read_text()
            self.address = said.removeprefix("Holdfast listens on ").strip()
            self.token = (data / "token").read_text().strip()
            wait_until(self.is_ready, "the server did not get ready")
        except BaseException:
            self.end()
            raise

    def is_ready(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        try:
            return httpx.get(f"{self.address}/health/ready", timeout=PATIENCE).status_code == 200
        except httpx.TransportError:
            return False

    def health(self) -> dict[str, Any]:
        """What it says when it is well: it waits for its database two seconds, for which a machine may stand still."""

        def well() -> dict[str, Any] | None:
            answer = httpx.get(f"{self.address}/health", timeout=PATIENCE)
            return answer.json() if answer.status_code == 200 else None

        said = wait_until(well, "the server is not well")
        assert said is not None
        return said

    def client(self, **more: Any) -> httpx.Client:
        return httpx.Client(**self._options(more))

    def async_client(self, **more: Any) -> httpx.AsyncClient:
        return httpx.AsyncClient(**self._options(more), limits=httpx.Limits(max_connections=None))

    def _options(self, more: dict[str, Any]) -> dict[str, Any]:
        headers = {"Authorization": f"Bearer {self.token}"} | more.pop("headers", {})
        return {"base_url": self.address, "timeout": 2 * PATIENCE, "headers": headers, **more}

    def terminate(self) -> int:
        """As a service manager ends it. Returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(2 * PATIENCE)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.end()

    def end(self) -> None:
        if self.process.poll() is None:
            try:
                self.terminate()
            finally:
                self.process.kill()
                self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


def event(name: str, session: str = "s1", **fields: Any) -> dict[str, Any]:
    return {"session_id": session, "cwd": "/home/dev/shop", "hook_event_name": name, **fields}
