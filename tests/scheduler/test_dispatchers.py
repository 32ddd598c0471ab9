"""What actions can do, against a real HTTP server where they call one."""

import asyncio
import json
import logging
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from test_single_instance import outcome, run

from holdfast.scheduler import (
    ACTION_DISPATCHERS,
    NOTIFICATION_CHANNELS,
    Execution,
    RunState,
    Scheduler,
    limit_tasks_to,
    register_task,
)


def dispatched(action_type: str, config: dict[str, Any], **fields: Any) -> Any:
    """How a run of it ended."""
    ended: list[Any] = []

    async def main() -> None:
        async with Scheduler() as scheduler:
            ended.append(await outcome(scheduler, action_type=action_type, action_config=config, **fields))

    run(main())
    return ended[0]


@dataclass
class Site:
    url: str
    asked: list[tuple[str, str, dict[str, str], bytes]] = field(default_factory=list)
    answers: list[tuple[int, bytes]] = field(default_factory=list)
    """Given one after another; the last one for ever."""
    drop_by_drop: bool = False


@pytest.fixture
def site() -> Iterator[Site]:
    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            known.asked.append((self.command, self.path, dict(self.headers), body))
            status, text = known.answers.pop(0) if len(known.answers) > 1 else known.answers[0]
            self.send_response(status)
            self.send_header("content-length", str(10_000 if known.drop_by_drop else len(text)))
            self.end_headers()
            try:
                while known.drop_by_drop:  # until the client has had enough
                    self.wfile.write(b"x")
                    time.sleep(0.05)
                self.wfile.write(text)
            except ConnectionError:
                pass  # the client had read enough

        do_GET = do_POST = answer

        def log_message(self, *arguments: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    known = Site(f"http://127.0.0.1:{server.server_port}", answers=[(200, b"fine")])
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield known
    server.shutdown()
    server.server_close()
    thread.join()


def adds(a: int, b: int = 1) -> int:
    return a + b


async def adds_in_loop(a: int, b: int = 1) -> int:
    await asyncio.sleep(0)
    return a + b


def knows_its_run(execution: Execution) -> dict[str, Any]:
    return {"action": execution.action.name, "run": execution.run.id, "key": execution.idempotency_key}


@register_task("doubles")
def doubles(previous: int) -> int:
    return 2 * previous


@pytest.mark.parametrize("task", [f"{__name__}:adds", f"{__name__}.adds", f"{__name__}:adds_in_loop"])
def test_a_task_is_found_by_its_path(task: str) -> None:
    ended = dispatched("run_task", {"task": task, "args": [1], "kwargs": {"b": 4}})
    assert (ended.state, ended.result) == (RunState.COMPLETED, 5)


def test_a_task_that_asks_for_its_execution_gets_it() -> None:
    ended = dispatched("run_task", {"task": f"{__name__}:knows_its_run"}, name="curious")
    assert ended.result == {"action": "curious", "run": ended.id, "key": ended.idempotency_key}


@pytest.mark.parametrize(
    ("config", "error"),
    [
        ({}, "task is the name"),
        ({"task": "unheard_of"}, "not registered"),
        ({"task": "no.such.module:name"}, "ModuleNotFoundError"),
        ({"task": f"{__name__}:nothing"}, "AttributeError"),
        ({"task": f"{__name__}:__doc__"}, "cannot be called"),
        ({"task": f"{__name__}:adds"}, "TypeError"),
        ({"task": f"{__name__}:adds", "args": 1}, "args is a list"),
    ],
)
def test_a_task_that_cannot_be_called_is_a_recorded_failure(config: dict[str, Any], error: str) -> None:
    ended = dispatched("run_task", config)
    assert ended.state == RunState.FAILED and error in ended.error


def test_tasks_can_be_kept_to_some_modules() -> None:
    limit_tasks_to(["my.tasks"])
    try:
        assert "outside the modules" in dispatched("run_task", {"task": "os:getcwd"}).error
        assert "outside the modules" in dispatched("run_task", {"task": "my.tasks2:x"}).error
        assert "No module" in dispatched("run_task", {"task": "my.tasks:x"}).error
    finally:
        limit_tasks_to(None)


def test_a_pipeline_passes_outputs_on() -> None:
    steps = [
        {"name": "sum", "task": f"{__name__}:adds", "args": [2]},
        {"name": "twice", "task": "doubles"},
        {"name": "all", "task": "builtins:dict", "kwargs": {"end": True}},
    ]
    ended = dispatched("execute_pipeline", {"steps": steps})
    assert ended.result == {"outputs": {"sum": 3, "twice": 6, "all": {"end": True}}}


def test_a_pipeline_ends_with_the_step_that_fails_and_names_it() -> None:
    steps = [{"name": "good", "task": f"{__name__}:adds", "args": [2]}, {"name": "bad", "task": "nowhere"}]
    ended = dispatched("execute_pipeline", {"steps": [*steps, {"task": "doubles"}]})
    assert ended.state == RunState.FAILED and ended.error.startswith("bad: ")
    assert ended.result["outputs"] == {"good": 3}
    assert "steps" in dispatched("execute_pipeline", {}).error


def test_an_api_is_called_with_the_idempotency_key_and_its_answer_recorded(site: Site) -> None:
    ended = dispatched("call_api", {"url": f"{site.url}/x", "method": "post", "json": {"a": 1}, "params": {"q": "1"}})
    ((method, path, headers, body),) = site.asked
    assert (method, path, json.loads(body)) == ("POST", "/x?q=1", {"a": 1})
    assert headers["Idempotency-Key"] == ended.idempotency_key
    assert (ended.result["status"], ended.result["body"], ended.result["truncated"]) == (200, "fine", False)


def test_only_safe_methods_are_sent_again(site: Site) -> None:
    site.answers = [(503, b""), (503, b""), (200, b"at last")]
    assert dispatched("call_api", {"url": site.url}).state == RunState.COMPLETED
    assert len(site.asked) == 3
    site.answers = [(503, b"no"), (200, b"")]
    ended = dispatched("call_api", {"url": site.url, "method": "POST"})
    assert ended.state == RunState.FAILED and "503" in ended.error and len(site.asked) == 4


def test_an_answer_is_bounded_in_size_and_a_bad_one_is_a_failure(site: Site) -> None:
    site.answers = [(200, b"x" * 5_000_000)]
    ended = dispatched("call_api", {"url": site.url, "max_response_bytes": 1000})
    assert ended.result["body"] == "x" * 1000 and ended.result["truncated"]
    site.answers = [(404, b"\x00\xff")]
    ended = dispatched("call_api", {"url": site.url})
    assert ended.state == RunState.FAILED and "404" in ended.error


def test_an_answer_that_comes_drop_by_drop_does_not_take_longer_than_its_timeout(site: Site) -> None:
    site.drop_by_drop = True
    ended = dispatched("call_api", {"url": site.url, "timeout": 0.3, "retries": 0})
    assert ended.state == RunState.FAILED and "TimeoutError" in ended.error


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/", "file:///etc/passwd", "", None])
def test_an_api_that_cannot_be_called_is_a_recorded_failure(url: Any) -> None:
    assert dispatched("call_api", {"url": url, "retries": 0}).state == RunState.FAILED


def test_notifications_go_to_the_log_to_a_webhook_or_to_a_channel_of_ones_own(
    site: Site, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with caplog.at_level(logging.INFO):
        assert dispatched("send_notification", {"message": "hello\nworld", "level": "warning"}).state == "completed"
    assert r"message='hello\nworld'" in caplog.text  # in one line
    hook = {"channel": "webhook", "url": site.url, "message": "hi"}
    assert dispatched("send_notification", hook).state == "completed"
    assert json.loads(site.asked[0][3])["message"] == "hi"
    monkeypatch.setitem(NOTIFICATION_CHANNELS, "pager", lambda execution: execution.action.action_config["message"])
    assert dispatched("send_notification", {"channel": "pager", "message": "up"}).result == "up"
    assert "pigeon" in dispatched("send_notification", {"channel": "pigeon"}).error


def test_dispatchers_are_open_to_users_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ACTION_DISPATCHERS, "mine", lambda execution: {"mine": True})
    assert dispatched("mine", {}).result == {"mine": True}
