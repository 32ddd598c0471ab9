"""Real processes for the tests of embedded servers: users, keepers, servers; and watching them end."""

import contextlib
import functools
import json
import os
import pwd
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from embedded_user import server_pid

import holdfast.embedded
from holdfast.testing import PATIENCE

SOURCE = str(Path(holdfast.embedded.__file__).parents[2])
FAST = {
    "postgres": {"fsync": "off", "full_page_writes": "off"},
    "redis": {"appendfsync": "no", "save": "", "hz": "100"},  # it notices a signal once a tick
}


class Watched:
    """A process held by a pidfd: its id cannot be mistaken for another's, and its end can be waited for."""

    def __init__(self, pid: int) -> None:
        assert pid > 1, "not a process of a test"
        self.pid = pid
        self._fd = os.pidfd_open(pid)

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._fd, number)

    def has_ended(self, within: float = 3 * PATIENCE) -> bool:
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        return bool(poll.poll(within * 1000))

    def status(self, field: str) -> list[str]:
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(f"{field}:"):
                return line.split()[1:]
        raise LookupError(field)

    def close(self) -> None:
        os.close(self._fd)


class User:
    """One run of embedded_user.py."""

    def __init__(self, stage: "Stage", kind: str, folder: Path, **how: Any) -> None:
        options = FAST[kind] | how.get("options", {})
        argv = [
            *how.get("before", []),
            how.get("python", sys.executable),
            str(Path(__file__).with_name("embedded_user.py")),
        ]
        argv += [kind, str(folder), json.dumps(options), str(how.get("wait", 30.0))]
        self.process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1,
            env=environment() | how.get("env", {}), cwd="/", **_credentials(how.get("account")),
            stderr=subprocess.DEVNULL if how.get("quiet") else None,
        )  # fmt: skip
        stage.users.append(self)
        self._stage = stage
        self.expect("loaded")

    def tell(self, line: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def expect(self, event: str, text: str = "") -> dict[str, Any]:
        """Read events until this one."""
        assert self.process.stdout
        for line in self.process.stdout:
            said: dict[str, Any] = json.loads(line)
            if said["event"] == event and text in said.get("text", ""):
                return said
            assert said["event"] == "progress", f"expected {event}, got {said}"
        raise AssertionError(f"expected {event}, but the process ended")

    def start(self) -> "Running":
        self.tell("start")
        return self.running()

    def running(self) -> "Running":
        said = self.expect("using")
        return self._stage.watch_running(said["url"], said["server"])

    def leave(self, how: str = "leave") -> int:
        if how == "kill":
            self.process.kill()
        else:
            self.tell(how)
        return self.process.wait(30)


class Running:
    """A server in use: its address, the process itself and its keeper."""

    def __init__(self, url: str, server: Watched, keeper: Watched) -> None:
        self.url, self.server, self.keeper = url, server, keeper

    def has_ended(self) -> bool:
        return self.server.has_ended() and self.keeper.has_ended()

    def is_alive(self) -> bool:
        return not self.server.has_ended(0) and not self.keeper.has_ended(0)


class Stage:
    """Everything one test started; struck afterwards, also when the test failed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.users: list[User] = []
        self._watched: list[Watched] = []

    def user(self, kind: str, folder: Path | None = None, **how: Any) -> User:
        return User(self, kind, folder or self.folder, **how)

    def watch(self, pid: int) -> Watched:
        watched = Watched(pid)
        self._watched.append(watched)
        return watched

    def watch_all(self) -> list[Watched]:
        """Every process that names the folder, but for those that end in this moment."""
        found = []
        for pid in processes_naming(str(self.folder)):
            with contextlib.suppress(ProcessLookupError):
                found.append(self.watch(pid))
        return found

    def watch_running(self, url: str, server: int | None = None) -> Running:
        watched = self.watch(server or server_pid(url))
        # What is watched gets killed in the end: an orphan's parent is init, or some other process that is not ours.
        parent = int(watched.status("PPid")[0])
        assert parent in keepers_of(self.folder), f"the server {watched.pid} has no keeper"
        return Running(url, watched, self.watch(parent))

    def strike(self) -> None:
        for user in self.users:
            user.process.kill()
            user.process.wait()
            for pipe in (user.process.stdin, user.process.stdout):
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()  # type: ignore[union-attr]
        for watched in self._watched:
            watched.kill(signal.SIGCONT)
            if not watched.has_ended(5):  # without users they end by themselves, and tidily
                watched.kill()
        for leftover in self.watch_all():
            leftover.kill()
        for watched in self._watched:
            watched.has_ended(10)
            watched.close()
        self.users, self._watched = [], []


def keepers_of(folder: Path) -> list[int]:
    found = list(processes_naming(f"keeper of {folder}/"))
    # A child that the keeper has forked shows its command line until it runs its own program.
    return [pid for pid in found if _parent(pid) not in found]


def _parent(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()[1])
    except OSError:  # it has just ended
        return 0


def processes_naming(text: str) -> Iterator[int]:
    """Processes with `text` in their command line; it holds this test's own temporary folder, so they are ours."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if text.encode() in (entry / "cmdline").read_bytes():
                    yield int(entry.name)


def environment() -> dict[str, str]:
    """This process's, and the same packages for whatever Python is run."""
    packages = [path for path in sys.path if path.endswith("site-packages")]
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")} | {
        "PYTHONPATH": os.pathsep.join([SOURCE, *packages, os.environ.get("PYTHONPATH", "")]),
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def _credentials(account: str | None) -> dict[str, Any]:
    if account is None:
        return {}
    entry = pwd.getpwnam(account)
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}


@functools.cache
def python_for(account: str) -> str:
    """A Python that `account` can run with this package; the one running the tests may be private to root."""
    for python in (sys.executable, "/usr/bin/python3"):
        with contextlib.suppress(OSError):
            check = [python, "-c", "import sys; assert sys.version_info >= (3, 11); import holdfast.embedded"]
            trial = subprocess.run(
                check, env=environment(), cwd="/", capture_output=True, check=False, **_credentials(account)
            )
            if trial.returncode == 0:
                return python
    pytest.skip(f"no Python 3.11 that the account {account} can run")
