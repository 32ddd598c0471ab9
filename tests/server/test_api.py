"""The API and the page: what they show is true, is of one tenant, and goes on where a reader left off."""

import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import httpx
import psycopg
import pytest
from running import RECORDED, Running, event, wait_until

from holdfast.server import stream
from holdfast.server.tokens import digest
from holdfast.testing import PATIENCE, Stopwatch

Db = psycopg.Connection[Any]


@pytest.fixture
def client(server: Running) -> Iterator[httpx.Client]:
    with server.client() as open_client:
        yield open_client


@contextmanager
def another_tenant(server: Running, db: Db) -> Iterator[httpx.Client]:
    token = "another-tenants-token-" + "x" * 20
    values = (digest(token), "another", ["hook", "read"])
    db.execute("insert into holdfast.token values (%s, %s, %s) on conflict do nothing", values)
    with server.client(headers={"Authorization": f"Bearer {token}"}) as client:
        yield client


def test_a_list_of_agents_is_short_however_much_was_said(client: httpx.Client) -> None:
    """The page asks for up to 500 of them, at every change."""
    client.post("/hook", json=event("UserPromptSubmit", prompt="p" * 100_000))
    client.post("/hook", json=event("Stop", last_assistant_message="s" * 100_000))
    (shown,) = client.get("/api/agents").json()["agents"]
    assert (shown["command"]["prompt"], shown["command"]["said"]) == ("p" * 2000, "s" * 2000)
    whole = client.get(f"/api/agents/{shown['id']}").json()
    assert [len(turn["text"]) for turn in whole["turns"]] == [100_000] * 2


def test_agents_are_shown_with_their_state_and_their_command(client: httpx.Client, db: Db) -> None:
    for report in RECORDED[:3]:
        client.post("/hook", json=report)
    client.post("/hook", json=event("UserPromptSubmit", session="s2", prompt="ask me"))
    client.post("/hook", json=event("Stop", session="s2", last_assistant_message="Shall I?"))
    second, first = client.get("/api/agents").json()["agents"]
    assert (first["session_id"], first["state"]) == (RECORDED[0]["session_id"], "PROCESSING")
    assert first["command"]["prompt"] == "say hi"
    assert first["context"] == {
        "project": "/home/dev/shop",
        "cwd": "/home/dev/shop",
        "git_branch": None,
        "model": None,
        "effort": "high",
        "permission_mode": "default",
        "source": "startup",
        "client_version": None,
        "transcript_path": RECORDED[0]["transcript_path"],
    }
    assert (second["state"], second["command"]["waits_for"]) == ("AWAITING_INPUT", "prompt")
    for report in RECORDED[3:]:
        client.post("/hook", json=report)
    wait_until(
        lambda: client.get(f"/api/agents/{first['id']}").json()["state"] == "ENDED", "ended agents are shown, too"
    )
    story = client.get(f"/api/agents/{first['id']}").json()
    assert story["command"]["state"] == "COMPLETE"
    assert [turn["intent"] for turn in story["turns"]] == ["COMMAND", "PROGRESS", "COMPLETION"]
    assert [each["name"] for each in story["events"]] == [report["hook_event_name"] for report in RECORDED]
    assert client.get("/api/agents", params={"before": second["id"]}).json()["agents"][0]["id"] == first["id"]


def test_an_agent_without_a_command_is_idle(client: httpx.Client) -> None:
    client.post("/hook", json=event("SessionStart"))
    (agent,) = client.get("/api/agents").json()["agents"]
    assert (agent["state"], agent["command"]) == ("IDLE", None)


def test_a_tenant_sees_its_own_agents_only_even_of_one_session(server: Running, client: httpx.Client, db: Db) -> None:
    client.post("/hook", json=event("SessionStart"))
    (ours,) = client.get("/api/agents").json()["agents"]
    with another_tenant(server, db) as other:
        assert other.get("/api/agents").json() == {"agents": []}
        assert other.get(f"/api/agents/{ours['id']}").status_code == 404
        other.post("/hook", json=event("SessionStart"))
        (theirs,) = other.get("/api/agents").json()["agents"]
        assert theirs["id"] != ours["id"]
        assert other.get("/hook/status").json()["agents"] == 1


@pytest.mark.parametrize(
    "path", ["agents/0", "agents/9223372036854775808", "agents/x", "agents?most=0", "agents?before=x"]
)
def test_odd_numbers_get_422(client: httpx.Client, path: str) -> None:
    assert client.get(f"/api/{path}").status_code == 422


@pytest.mark.parametrize("path", ["/api/agents", "/api/agents/1", "/api/events", "/api/advisory-locks", "/"])
def test_nothing_is_shown_without_a_token(server: Running, path: str) -> None:
    assert httpx.get(server.address + path, timeout=PATIENCE).status_code == 401


def test_advisory_locks_of_this_database_are_shown_as_they_were_asked_for(
    client: httpx.Client, db: Db, holdfast_postgres_url: str
) -> None:
    keys = [(1, 42), (-7, -1), (2**31 - 1, -(2**31))]
    big = [5, -5, 2**63 - 1, -(2**63)]
    with psycopg.connect(holdfast_postgres_url, autocommit=True) as elsewhere:
        elsewhere.execute("select pg_advisory_lock(1, 4711)")
        for namespace, entity in keys:
            db.execute("select pg_advisory_lock(%s::int, %s::int)", (namespace, entity))
        for number in big:
            db.execute("select pg_advisory_lock_shared(%s::bigint)", (number,))
        answer = client.get("/api/advisory-locks").json()
    mine = [lock for lock in answer["locks"] if lock["pid"] == db.info.backend_pid]
    assert sorted((lock["namespace"], lock["entity_id"]) for lock in mine if lock["namespace"] is not None) == sorted(
        keys
    )
    assert sorted(lock["entity_id"] for lock in mine if lock["namespace"] is None) == sorted(big)
    assert answer["total"] == len(answer["locks"])
    assert 4711 not in {lock["entity_id"] for lock in answer["locks"]}, "another database's"
    for lock in mine:
        assert isinstance(lock["duration"], float) and lock["granted"] is True
        assert lock.keys() == {
            "pid", "application_name", "state", "query_start", "namespace", "entity_id", "mode", "granted", "duration",
        }  # fmt: skip
    assert {lock["mode"] for lock in mine} == {"ExclusiveLock", "ShareLock"}
    db.execute("select pg_advisory_unlock_all()")


class Reader:
    """Follows ``/api/events`` in a thread."""

    def __init__(self, server: Running, after: str | None = None, token: str | None = None) -> None:
        self.changes: list[tuple[str, dict[str, Any]]] = []
        host, port = server.address.removeprefix("http://").split(":")
        self._socket = socket.create_connection((host, int(port)), PATIENCE)
        headers = {"Host": host, "Connection": "close", "Authorization": f"Bearer {token or server.token}"} | (
            {"Last-Event-ID": after} if after else {}
        )
        lines = ["GET /api/events HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
        self._socket.sendall("\r\n".join(lines).encode())
        self._lines = self._socket.makefile("rb")
        assert self._lines.readline().startswith(b"HTTP/1.1 200 ")
        while not self._lines.readline().startswith(b"id: "):  # where it begins
            pass
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        position = ""
        for line in self._lines:
            if line.startswith(b"id: "):
                position = line.decode().removeprefix("id: ").strip()
            elif line.startswith(b"data: "):
                self.changes.append((position, json.loads(line.removeprefix(b"data: "))))

    @property
    def ended(self) -> bool:
        return not self._thread.is_alive()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass  # the server has hung up
        self._thread.join()
        self._lines.close()
        self._socket.close()


def test_changes_are_told_and_a_reader_goes_on_where_it_was(server: Running, client: httpx.Client) -> None:
    with Reader(server) as reader:
        for n in range(3):
            client.post("/hook", json=event("Note", n=n))
        wait_until(lambda: len(reader.changes) == 3, "changes are told")
    assert [change["number"] for _, change in reader.changes] == [1, 2, 3]
    for n in range(3, 5):
        client.post("/hook", json=event("Note", n=n))
    with Reader(server, after=reader.changes[1][0]) as again:
        wait_until(lambda: len(again.changes) == 3, "what came since")
    assert [change["number"] for _, change in again.changes] == [3, 4, 5]


def test_a_change_that_commits_late_is_not_missed(server: Running, client: httpx.Client, url: str, db: Db) -> None:
    """One transaction began before another and ends after it: its change has the lower number, and is told."""
    client.post("/hook", json=event("Note"))
    finish = "status = 'done', processed_at = now(), processed_in = txid_current(), effect = 'slow'"
    with Reader(server) as reader, psycopg.connect(url) as slow:
        slow.execute(f"update holdfast.event set {finish}")
        client.post("/hook", json=event("Note", session="another"))
        time.sleep(4 * stream.LOOK_SECONDS)  # readers look, and must not pass it by
        assert reader.changes == []
        slow.commit()
        wait_until(lambda: len(reader.changes) == 2, "both are told")
    assert [change["effect"] for _, change in reader.changes] == ["slow", "kept"]


def test_another_tenants_changes_are_not_told(server: Running, client: httpx.Client, db: Db) -> None:
    with Reader(server) as reader, another_tenant(server, db) as other:
        other.post("/hook", json=event("Note", session="theirs"))
        client.post("/hook", json=event("Note", session="ours"))
        wait_until(lambda: reader.changes, "changes are told")
    assert [change["session_id"] for _, change in reader.changes] == ["ours"]


@pytest.mark.parametrize("position", ["x", "1", "1-", "-1", "1-2-3", "1" * 50 + "-1"])
def test_a_position_that_is_none_gets_422(client: httpx.Client, position: str) -> None:
    assert client.get("/api/events", headers={"Last-Event-ID": position}).status_code == 422


def test_a_server_that_ends_does_not_wait_for_its_readers(start: Callable[..., Running]) -> None:
    server = start()
    with Reader(server) as reader:
        watch = Stopwatch()
        assert server.terminate() == 0
        assert watch.awake < 5
        wait_until(lambda: reader.ended, "the stream ended")


def connections_of(server: Running) -> int:
    """How many the server still has on its side, as the kernel sees them."""
    port = int(server.address.rpartition(":")[2])
    lines = Path("/proc/net/tcp").read_text().splitlines()[1:]
    return sum(line.split()[1].endswith(f":{port:04X}") and line.split()[3] != "0A" for line in lines)


def test_a_reader_that_takes_nothing_is_dropped_and_holds_up_nobody(start: Callable[..., Running], db: Db) -> None:
    server = start(HOLDFAST_STREAM_PATIENCE="3")  # more than the other reader ever needs, on a busy machine, too
    host, port = server.address.removeprefix("http://").split(":")
    with server.client() as client:
        client.post("/hook", json=event("Note"))
        (agent,) = client.get("/api/agents").json()["agents"]
        stalled = socket.socket()
        stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        stalled.connect((host, int(port)))
        with stalled, Reader(server) as reader:
            stalled.sendall(
                f"GET /api/events HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {server.token}\r\n\r\n".encode()
            )
            assert stalled.recv(12) == b"HTTP/1.1 200", "it follows along; from here on it takes nothing"
            # More than all buffers between can hold.
            db.execute(
                "insert into holdfast.event"
                " (agent_id, number, name, payload, digest, status, processed_at, processed_in, effect)"
                " select %s, n, 'Note', '{}', '', 'done', now(), txid_current(), repeat('x', 3000)"
                " from generate_series(2, 6001) n",
                (agent["id"],),
            )
            wait_until(lambda: len(reader.changes) == 6000, "whoever reads is told all of it")
            watch = Stopwatch()
            assert client.post("/hook", json=event("Note", n=2)).status_code == 200
            assert watch.awake < 2
            wait_until(lambda: "stream_dropped" in server.log.read_text(), "it was not dropped")
            wait_until(lambda: connections_of(server) == 2, "its connection is still there")
            wait_until(lambda: len(reader.changes) == 6001, "others live")
    assert "Traceback" not in server.log.read_text()


def test_a_reader_whose_token_is_revoked_is_told_no_more(server: Running, client: httpx.Client, db: Db) -> None:
    with another_tenant(server, db) as other:
        token = other.headers["Authorization"].removeprefix("Bearer ")
        with Reader(server, token=token) as reader:
            db.execute("update holdfast.token set revoked_at = now() where digest = %s", (digest(token),))
            wait_until(lambda: reader.ended, "the stream went on")
    db.execute("delete from holdfast.token where digest = %s", (digest(token),))


def test_the_printed_address_lets_one_browser_in(start: Callable[..., Running], db: Db) -> None:
    server = start()
    assert server.process.stdout is not None
    page = re.search(r"(http\S+code=\S+)", server.process.stdout.readline())
    assert page is not None
    with httpx.Client(timeout=PATIENCE) as browser, httpx.Client(timeout=PATIENCE) as second:
        answer = browser.get(page[1])
        assert (answer.status_code, answer.headers["location"]) == (303, "/")
        assert all(word in answer.headers["set-cookie"] for word in ("HttpOnly", "SameSite=strict"))
        shown = browser.get(f"{server.address}/")
        assert shown.status_code == 200 and "page.js" in shown.text
        assert "script-src 'self'" in shown.headers["content-security-policy"]
        assert browser.get(f"{server.address}/api/agents").status_code == 200
        assert browser.get(f"{server.address}/assets/page.js").status_code == 200
        assert browser.post(f"{server.address}/hook", json=event("Note")).status_code == 403, "for reading only"
        assert browser.get(f"{server.address}/api/advisory-locks").status_code == 403
        assert second.get(page[1]).status_code == 401, "once"


def test_too_little_room_in_the_database_is_told_with_the_figure(url: str, tmp_path: Path) -> None:

    settings = {"HOLDFAST_DATABASE_URL": url, "HOLDFAST_WORKERS": "20", "HOLDFAST_PORT": "0"}
    environment = os.environ | settings | {"HOLDFAST_DATA_DIR": str(tmp_path)}
    command = [sys.executable, "-m", "holdfast.cli", "serve"]
    outcome = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=tmp_path)
    assert outcome.returncode == 1
    assert "20 workers need up to 890 connections" in outcome.stderr and "has room for" in outcome.stderr


@pytest.mark.parametrize(
    ("file", "said"),
    [("[server]\nport = 70000\n", "port"), ("[server]\nprot = 1\n", "prot"), ("[server\n", "holdfast.toml")],
)
def test_settings_that_are_wrong_are_named(tmp_path: Path, file: str, said: str) -> None:
    (tmp_path / "holdfast.toml").write_text(file)
    command = [sys.executable, "-m", "holdfast.cli", "serve"]
    outcome = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert outcome.returncode == 1
    assert outcome.stderr.startswith("holdfast: ") and said in outcome.stderr
