"""A headless Chromium, told what to do by the DevTools protocol over two pipes: no driver, no port."""

import fcntl
import json
import os
import select
import shutil
import subprocess
import sys
import time
from base64 import b64decode
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from holdfast.testing import PATIENCE

PROGRAM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

_OPTIONS = [
    "--headless", "--remote-debugging-pipe", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--mute-audio",
    "--no-proxy-server",
]  # fmt: skip


# Chromium reads commands from descriptor 3 and answers on descriptor 4.
_START = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.dup2(int(sys.argv[2]), 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


def _pipe() -> tuple[int, int]:
    """With numbers that are out of the way of 3 and 4."""
    ends = os.pipe()
    moved = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends]
    for end in ends:
        os.close(end)
    return moved[0], moved[1]


class Browser:
    """One window. What its page complains of is collected."""

    def __init__(self, profile: Path) -> None:
        assert PROGRAM is not None
        sandbox = ["--no-sandbox"] if os.getuid() == 0 else []
        command_read, self._commands = _pipe()
        self._answers, answer_write = _pipe()
        command = [PROGRAM, *_OPTIONS, *sandbox, f"--user-data-dir={profile}", "about:blank"]
        self._process = subprocess.Popen(
            [sys.executable, "-c", _START, str(command_read), str(answer_write), *command],
            pass_fds=(command_read, answer_write), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(command_read)
        os.close(answer_write)
        self._number = 0
        self._unread = b""
        self._session: str | None = None
        self.complaints: list[str] = []
        try:
            target = next(each for each in self.call("Target.getTargets")["targetInfos"] if each["type"] == "page")
            attached = self.call("Target.attachToTarget", targetId=target["targetId"], flatten=True)
            self._session = attached["sessionId"]
            for domain in ("Page", "Runtime", "Log"):
                self.call(f"{domain}.enable")
        except BaseException:
            self.close()
            raise

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        deadline = time.monotonic() + 2 * PATIENCE
        while True:
            answer = self._next(deadline)
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result

    def _next(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._unread:
            ready, _, _ = select.select([self._answers], [], [], max(0, deadline - time.monotonic()))
            assert ready, "the browser does not answer"
            received = os.read(self._answers, 1 << 16)
            assert received, "the browser has ended"
            self._unread += received
        one, _, self._unread = self._unread.partition(b"\0")
        message: dict[str, Any] = json.loads(one)
        if message.get("method") == "Log.entryAdded":
            self.complaints.append(message["params"]["entry"]["text"])
        elif message.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(message["params"]["exceptionDetails"]))
        return message

    def open(self, address: str) -> None:
        self.call("Page.navigate", url=address)

    def evaluate(self, expression: str) -> Any:
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def wait_for(self, expression: str) -> Any:
        """Until the expression is true in the page; what it is then."""
        deadline = time.monotonic() + 2 * PATIENCE
        while not (value := self.evaluate(expression)):
            assert time.monotonic() < deadline, f"{expression} did not come true; the page:\n{self.text()}"
            time.sleep(0.02)
        return value

    def text(self) -> str:
        return str(self.evaluate("document.body?.innerText ?? ''"))

    def look(self, path: Path, *, width: int = 1000, height: int = 800, dark: bool = False) -> None:
        """A picture of the page, for a person to look at."""
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=scheme)
        path.write_bytes(b64decode(self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"]))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        os.close(self._commands)  # Chromium ends when nobody can tell it anything
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._answers)
