"""The shim: delivers, keeps in order what it cannot deliver, and never costs the client more than two seconds."""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from holdfast.hooks.folders import spool_dir
from holdfast.hooks.shim import SECONDS
from holdfast.hooks.spool import Delivery, Spool
from holdfast.testing import PATIENCE, Stopwatch
from ports import reserved_port


class Received:
    """An HTTP server that notes what comes, and answers as it is told."""

    def __init__(self, port: int = 0) -> None:
        self.requests: list[tuple[str, dict[str, str], dict[str, Any]]] = []
        self.status, self.body = 200, b""
        received = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                content = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                received.requests.append((self.path, dict(self.headers), content))
                self.send_response(received.status)
                self.send_header("Content-Length", str(len(received.body)))
                self.end_headers()
                self.wfile.write(received.body)

            def log_message(self, *_: Any) -> None: ...

        self.server = HTTPServer(("127.0.0.1", port), Handler)
        self.port = self.server.server_port
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def numbers(self) -> list[int]:
        return [content["n"] for _, _, content in self.requests]

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def received() -> Iterator[Received]:
    server = Received()
    yield server
    server.close()


# With more time than it has: on a machine that pauses, too, it is not what decides.
PATIENTLY = """
import sys
from holdfast.hooks import shim
shim.SECONDS = float(sys.argv.pop(1))
from holdfast.cli import main
sys.exit(main(["hook", *sys.argv[1:]]))
"""


def run(url: str, data: Path, event: Any) -> subprocess.CompletedProcess[bytes]:
    body = event if isinstance(event, bytes) else json.dumps(event).encode()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    command = [sys.executable, "-c", PATIENTLY, str(PATIENCE), "--url", url, "--data-dir", str(data)]
    return subprocess.run(command, input=body, capture_output=True, env=environment, timeout=2 * PATIENCE)


def costs_two_seconds_at_most(*arguments: str, body: bytes | None) -> bool:
    """Without a body, its standard input never ends. Python's own start is what the machine makes of it at that moment:
    what it takes more than the usual tenth of a second does not count, and one of three times is enough."""
    for _ in range(3):
        watch = Stopwatch()
        command = [sys.executable, "-m", "holdfast.cli", "hook", *arguments]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as shim:
            assert shim.stdin is not None
            if body is not None:
                shim.stdin.write(body)
                shim.stdin.close()
            assert shim.wait(PATIENCE) == 0
        took = watch.awake
        watch.restart()
        subprocess.run([sys.executable, "-m", "holdfast.cli", "--version"], capture_output=True, check=True)
        if took < 2 + max(0.0, watch.awake - 0.1):
            return True
    return False


def spooled(url: str, data: Path) -> list[int]:
    folder = spool_dir(data, url)
    return [json.loads(path.read_bytes())["n"] for path in sorted(folder.glob("[0-9]*"))]


def test_an_event_is_delivered_with_the_token_and_nothing_is_said(received: Received, tmp_path: Path) -> None:
    (tmp_path / "hook-token").write_text("hf_secret\n")
    outcome = run(f"http://127.0.0.1:{received.port}", tmp_path, {"n": 1})
    assert (outcome.returncode, outcome.stdout, outcome.stderr) == (0, b"", b"")
    ((path, headers, content),) = received.requests
    assert (path, content) == ("/hook", {"n": 1})
    assert headers["Authorization"] == "Bearer hf_secret"
    assert headers["Content-Type"] == "application/json"
    assert len(headers["Holdfast-Delivery"]) == 32
    assert "Holdfast-Spooled" not in headers


def test_a_decision_is_handed_on(received: Received, tmp_path: Path) -> None:
    received.body = b'{"decision": "block"}'
    outcome = run(f"http://127.0.0.1:{received.port}", tmp_path, {"n": 1})
    assert outcome.stdout == received.body


def test_offline_events_are_kept_in_order_and_delivered_when_the_server_is_back(tmp_path: Path) -> None:
    with reserved_port() as port:
        url = f"http://127.0.0.1:{port}"
        for n in range(3):
            outcome = run(url, tmp_path, {"n": n})
            assert outcome.returncode == 0 and outcome.stdout == b""
        assert spooled(url, tmp_path) == [0, 1, 2]
        server = Received(port)
    try:
        run(url, tmp_path, {"n": 3})
        assert server.numbers == [0, 1, 2, 3]
        assert ["Holdfast-Spooled" in headers for _, headers, _ in server.requests] == [True, True, True, False]
        assert len({headers["Holdfast-Delivery"] for _, headers, _ in server.requests}) == 4
        assert spooled(url, tmp_path) == []
    finally:
        server.close()


@pytest.mark.parametrize(("port", "token"), [(99999, "hf_x"), (1, "two\nlines"), (1, "€"), (1, b"\xff")])
def test_an_event_that_cannot_even_be_sent_is_kept(tmp_path: Path, port: int, token: str | bytes) -> None:
    (tmp_path / "hook-token").write_bytes(token if isinstance(token, bytes) else token.encode())
    url = f"http://127.0.0.1:{port}"
    outcome = run(url, tmp_path, {"n": 1})
    assert outcome.returncode == 0 and outcome.stdout == b""
    assert spooled(url, tmp_path) == [1]


@pytest.mark.parametrize("spool_before", [False, True])
def test_a_server_that_does_not_answer_costs_two_seconds_at_most(tmp_path: Path, spool_before: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        if spool_before:
            Spool(spool_dir(tmp_path, url)).add("before", b'{"n": 0}')
        assert costs_two_seconds_at_most("--url", url, "--data-dir", str(tmp_path), body=b'{"n": 1}')
    kept = spooled(url, tmp_path)
    assert kept[0] == (0 if spool_before else 1) and set(kept[1:]) <= {1} and 1 in kept


def test_a_standard_input_that_never_ends_costs_two_seconds_at_most(tmp_path: Path) -> None:
    assert costs_two_seconds_at_most("--data-dir", str(tmp_path), body=None)


def test_no_alarm_is_left_for_the_end_of_python() -> None:
    code = (
        "import signal, time; from holdfast.hooks.shim import Limit; Limit(0.5).keep(lambda: None)\n"
        "signal.signal(signal.SIGALRM, signal.SIG_DFL); time.sleep(0.6)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_an_event_is_kept_although_the_machine_stood_still_for_all_of_the_time(tmp_path: Path) -> None:
    url = "http://127.0.0.1:1"
    code = (
        "import os, signal, sys; from holdfast.hooks import shim; read = shim._read\n"
        "shim._read = lambda limit: (os.kill(os.getpid(), signal.SIGSTOP), read(limit))[1]\n"
        "shim.main(sys.argv[1:])"
    )
    command = [sys.executable, "-c", code, "--url", url, "--data-dir", str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as shim:
        assert shim.stdin is not None
        _, status = os.waitpid(shim.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status), "its time has begun, and nothing is read"
        shim.stdin.write(b'{"n": 1}')
        shim.stdin.close()
        time.sleep(SECONDS)
        shim.send_signal(signal.SIGCONT)
        assert shim.wait(PATIENCE) == 0
    assert spooled(url, tmp_path) == [1]


@pytest.mark.parametrize("status", [401, 403, 404, 429, 500, 503])
def test_what_may_be_taken_later_is_kept(received: Received, tmp_path: Path, status: int) -> None:
    received.status, received.body = status, b"no"
    url = f"http://127.0.0.1:{received.port}"
    outcome = run(url, tmp_path, {"n": 1})
    assert (outcome.returncode, outcome.stdout) == (0, b"")
    assert spooled(url, tmp_path) == [1]


@pytest.mark.parametrize("status", [400, 413, 415, 422])
def test_what_will_never_be_taken_does_not_hold_up_the_rest(received: Received, tmp_path: Path, status: int) -> None:
    url = f"http://127.0.0.1:{received.port}"
    spool = Spool(spool_dir(tmp_path, url))
    spool.add("bad", b'{"n": 0}')
    received.status = status
    run(url, tmp_path, {"n": 1})
    assert received.numbers == [0, 1]
    assert spool.empty
    assert len(list((spool_dir(tmp_path, url) / "refused").iterdir())) == 2


@pytest.mark.parametrize("body", [b"", b"   ", b"\xff not json"])
def test_whatever_comes_in_the_client_sees_no_failure(tmp_path: Path, body: bytes) -> None:
    outcome = run("http://127.0.0.1:1", tmp_path, body)
    assert (outcome.returncode, outcome.stdout) == (0, b"")


def test_a_folder_that_cannot_be_written_is_no_failure_either(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    outcome = run("http://127.0.0.1:1", tmp_path / "file" / "data", {"n": 1})
    assert outcome.returncode == 0
    assert b"holdfast hook" in outcome.stderr


def test_what_is_kept_is_for_its_owner_only(tmp_path: Path) -> None:
    run("http://127.0.0.1:1", tmp_path, {"n": 1})
    folder = spool_dir(tmp_path, "http://127.0.0.1:1")
    assert folder.stat().st_mode & 0o077 == 0
    assert all(path.stat().st_mode & 0o077 == 0 for path in folder.iterdir())


def test_one_delivers_at_a_time_and_others_only_add(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool")
    for n in range(3):
        spool.add(str(n), b"x")
    sent: list[str] = []

    def send(delivery: str, body: bytes) -> Delivery:
        Spool(tmp_path / "spool").deliver(lambda *_: pytest.fail("a second one delivers"))
        if not sent:
            Spool(tmp_path / "spool").add("3", b"x")
        sent.append(delivery)
        return Delivery.TAKEN

    spool.deliver(send)
    assert sent == ["0", "1", "2", "3"]  # also what came meanwhile


def test_delivering_stops_at_the_first_that_fails(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool")
    for n in range(3):
        spool.add(str(n), b"x")
    spool.deliver(lambda delivery, _: Delivery.TAKEN if delivery == "0" else Delivery.FAILED)
    left: list[str] = []
    spool.deliver(lambda delivery, _: left.append(delivery) or Delivery.TAKEN)  # type: ignore[func-returns-value]
    assert left == ["1", "2"]


def test_events_added_by_many_processes_all_have_their_place(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from holdfast.hooks import spool\n"
        "spool.ADD_SECONDS = 30  # on a busy disk, too\n"
        "for n in range(20): spool.Spool(Path(sys.argv[1])).add(f'{sys.argv[2]}x{n}', b'x')"
    )
    adders = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "spool"), str(p)]) for p in range(4)]
    assert [adder.wait(PATIENCE) for adder in adders] == [0] * 4
    names = sorted(path.name for path in (tmp_path / "spool").glob("[0-9]*"))
    assert [int(name.split("-")[0]) for name in names] == list(range(1, 81))
    for process in range(4):
        own = [name.split("x")[1] for name in names if f"-{process}x" in name]
        assert own == [str(n) for n in range(20)]


def test_the_shim_loads_nothing_but_python(tmp_path: Path) -> None:
    code = "import sys; from holdfast.cli import main; main(['hook', '--data-dir', sys.argv[1]]); print(*sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code, str(tmp_path)], input=b"{}", capture_output=True, check=True)
    loaded = set(shown.stdout.decode().split())
    heavy = {"asyncio", "psycopg", "fastapi", "sqlalchemy", "argparse", "logging", "uvicorn", "inspect"}
    assert not loaded & heavy
