"""Being told by a webhook: by a server that runs, of what needs a person, at least once, and at no hook's expense."""

import asyncio
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

import psycopg
import pytest
from running import RECORDED, Running, event, wait_until

from holdfast.agents import outbox
from holdfast.agents.outbox import Message
from holdfast.server.app import create_app
from holdfast.server.settings import load
from holdfast.testing import PATIENCE, Stopwatch

Db = psycopg.Connection[Any]
STATUSES = "select status from holdfast.outbox order by id"


class Receiver:
    """An HTTP server that is posted to, and answers as it is told to."""

    def __init__(self) -> None:
        self.came: list[tuple[str | None, dict[str, Any]]] = []
        self.status = 204
        self.headers: dict[str, str] = {}
        self.answers = threading.Event()
        self.answers.set()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                receiver.came.append((self.headers["Idempotency-Key"], body | {"path": self.path}))
                receiver.answers.wait(PATIENCE)
                try:
                    self.send_response(receiver.status)
                    for header in receiver.headers.items():
                        self.send_header(*header)
                    self.end_headers()
                except OSError:
                    pass  # nobody waits any more

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = False
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}/secret-path"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.answers.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as running:
        yield running


def complete(server: Running, session: str = "s1") -> float:
    """A command from its beginning to its end. Returns how long we waited for the slower of the two hooks."""
    slowest = 0.0
    with server.client() as client:
        for report in (
            event("UserPromptSubmit", session, prompt="do it", n=time.monotonic()),
            event("Stop", session, last_assistant_message="Done.", n=time.monotonic()),
        ):
            watch = Stopwatch()
            assert client.post("/hook", json=report).status_code == 200
            slowest = max(slowest, watch.awake)
    return slowest


def test_the_recorded_session_is_told(start: Callable[..., Running], db: Db, receiver: Receiver) -> None:
    server = start(HOLDFAST_NOTIFY_URL=receiver.url, HOLDFAST_NOTIFY_ON="awaiting_input, complete, ended")
    with server.client() as client:
        for report in RECORDED:
            client.post("/hook", json=report)
        wait_until(lambda: len(receiver.came) == 2, "it was not told")
        wait_until(lambda: db.execute(STATUSES).fetchall() == [("done",)] * 2, "it is not noted as told")
        keys = [str(key) for (key,) in db.execute("select key from holdfast.outbox order by id")]
        assert [key for key, _ in receiver.came] == keys
        assert [(body["kind"], body["text"]) for _, body in receiver.came] == [
            ("complete", "All done, hello."),
            ("ended", "other"),
        ]
    assert server.health()["outbox"] == {"waiting": 0, "set_aside": 0}


def test_a_receiver_that_hangs_delays_no_hook(start: Callable[..., Running], db: Db, receiver: Receiver) -> None:
    receiver.answers.clear()
    server = start(HOLDFAST_NOTIFY_URL=receiver.url)
    complete(server)
    wait_until(lambda: receiver.came, "it was not told")
    waits = [complete(server, f"s{n}") for n in range(20)]  # more than are delivered at once
    assert max(waits) < 2, "the receiver is waited for 10 s"
    assert server.health()["outbox"]["waiting"] == 21
    with server.client() as client:
        assert client.get("/hook/status").json()["messages_waiting"] == 21
    receiver.answers.set()
    wait_until(lambda: db.execute(STATUSES).fetchall() == [("done",)] * 21, "all were delivered then")
    assert len({key for key, _ in receiver.came}) == 21


def test_killed_amid_a_delivery_another_process_delivers_it_by_the_same_key(
    start: Callable[..., Running], db: Db, receiver: Receiver
) -> None:
    receiver.answers.clear()
    killed = start(HOLDFAST_NOTIFY_URL=receiver.url)
    complete(killed)
    wait_until(lambda: receiver.came, "it was not told")
    killed.kill()
    receiver.answers.set()
    assert db.execute("select status, due_at > now() from holdfast.outbox").fetchall() == [("waiting", True)], "leased"
    db.execute("update holdfast.outbox set due_at = now() + interval '1 h'")  # however long a start takes
    start(HOLDFAST_NOTIFY_URL=receiver.url)
    assert db.execute(STATUSES).fetchall() == [("waiting",)]
    db.execute("update holdfast.outbox set due_at = now()")  # the end of its lease, which nobody is told of
    wait_until(lambda: db.execute(STATUSES).fetchall() == [("done",)], "it was not delivered again")
    first, again = receiver.came
    assert first == again


def test_what_was_written_while_nobody_could_deliver_goes_out_at_the_next_start(
    start: Callable[..., Running], db: Db, receiver: Receiver
) -> None:
    receiver.status = 503
    server = start(HOLDFAST_NOTIFY_URL=receiver.url)
    complete(server)
    wait_until(lambda: db.execute("select error from holdfast.outbox").fetchall() == [("status 503",)], "it failed")
    assert server.terminate() == 0
    receiver.status = 200
    db.execute("update holdfast.outbox set due_at = now()")  # it may have been tried more often, and pause for long
    start(HOLDFAST_NOTIFY_URL=receiver.url)
    wait_until(lambda: db.execute(STATUSES).fetchall() == [("done",)], "it was not delivered")


def test_redirects_are_not_followed_and_the_address_is_in_no_row_and_no_log(
    start: Callable[..., Running], db: Db, receiver: Receiver
) -> None:
    receiver.status, receiver.headers = 307, {"Location": "/elsewhere"}
    server = start(HOLDFAST_NOTIFY_URL=receiver.url)
    complete(server)
    wait_until(lambda: db.execute("select error from holdfast.outbox").fetchall() == [("status 307",)], "it failed")
    db.execute("update holdfast.outbox set attempts = 8, due_at = now()")
    wait_until(lambda: db.execute(STATUSES).fetchall() == [("set_aside",)], "it was not set aside")
    with server.client() as client:
        assert client.get("/hook/status").json()["messages_set_aside"] == 1
    server.terminate()
    assert {body["path"] for _, body in receiver.came} == {"/secret-path"}
    assert "message_set_aside" in server.log.read_text() and "secret-path" not in server.log.read_text()


def test_without_an_address_nothing_is_written(start: Callable[..., Running], db: Db) -> None:
    complete(start())
    assert db.execute(STATUSES).fetchall() == []


@pytest.mark.parametrize("setting", ["HOLDFAST_NOTIFY_URL=file:///s3cret", "HOLDFAST_NOTIFY_ON=complete,s3cret"])
def test_settings_that_are_wrong_are_named_and_not_shown(tmp_path: Path, setting: str) -> None:
    name, _, value = setting.partition("=")
    command = [sys.executable, "-m", "holdfast.cli", "serve", "--data-dir", str(tmp_path)]
    outcome = subprocess.run(command, env=os.environ | {name: value}, capture_output=True, text=True, cwd=tmp_path)
    assert outcome.returncode == 1
    assert name.removeprefix("HOLDFAST_").lower() in outcome.stderr and "s3cret" not in outcome.stderr


def test_a_receiver_whose_name_nobody_resolves_takes_no_thread_from_the_rest(
    database_with_tables: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looking a name up takes a thread for as long as it takes, also when its delivery was given up."""
    resolve, asked, over = socket.getaddrinfo, list[object](), threading.Event()
    lookups = 3 * outbox.MOST_AT_ONCE  # each round of deliveries may leave its own behind

    def slow(host: Any, *more: Any, **options: Any) -> Any:
        if host not in ("nowhere.example", b"nowhere.example"):
            return resolve(host, *more, **options)
        asked.append(host)
        over.wait()
        raise socket.gaierror("nobody answered")

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    settings = load(database_url=database_with_tables, data_dir=tmp_path, notify_url="http://nowhere.example/")

    async def main() -> None:
        app = create_app(settings)
        async with app.router.lifespan_context(app):
            post = app.state.service.webhook.post
            posts = [asyncio.create_task(post(Message(n, uuid4(), {}, 1))) for n in range(lookups)]
            try:
                async with asyncio.timeout(PATIENCE):
                    while len(asked) < lookups:  # noqa: ASYNC110  threads tell nobody
                        await asyncio.sleep(0.01)
                    await asyncio.to_thread(len, asked)
            finally:
                over.set()
                await asyncio.gather(*posts, return_exceptions=True)

    asyncio.run(main())
