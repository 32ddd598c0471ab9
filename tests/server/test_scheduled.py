"""The scheduler of a running server: mounted, guarded, started, and drained at the end."""

import json
from collections.abc import Callable
from typing import Any

import psycopg
from running import Running, wait_until

ACTION = {
    "name": "tick",
    "action_type": "send_notification",
    "action_config": {"channel": "log", "message": "tick"},
    "schedule_type": "interval",
    "interval_seconds": 1,
}


def test_an_action_that_was_created_is_run_and_its_runs_are_shown(start: Callable[..., Running]) -> None:
    server = start(HOLDFAST_WORKERS="2")
    with server.client() as client:
        created = client.post("/scheduled-actions", json=ACTION)
        assert created.status_code == 201, created.text
        path = f"/scheduled-actions/{created.json()['id']}"
        done = lambda: [run for run in client.get(f"{path}/runs").json() if run["state"] == "completed"]  # noqa: E731
        wait_until(lambda: len(done()) > 1, "it was not run")
        assert client.post(f"{path}/pause").status_code == 200
        runs = client.get(f"{path}/runs").json()
        assert len({run["scheduled_for"] for run in runs}) == len(runs)  # two workers, each occurrence once
    assert server.health()["scheduler"]["healthy"]
    assert server.terminate() == 0


def test_it_takes_the_scope_admin_and_json(server: Running, db: psycopg.Connection[Any]) -> None:
    before = db.execute("select count(*) from holdfast.scheduled_action").fetchone()
    hook_token = (server.data / "hook-token").read_text().strip()
    with server.client() as client:
        for headers, status in (
            ({"Authorization": ""}, 401),
            ({"Authorization": f"Bearer {hook_token}"}, 403),
            ({"Content-Type": "text/plain"}, 415),
            ({"Origin": "http://elsewhere.example"}, 403),
        ):
            assert client.post("/scheduled-actions", content=json.dumps(ACTION), headers=headers).status_code == status
        assert client.post("/scheduled-actions", json=ACTION | {"interval_seconds": -1}).status_code == 422
    assert db.execute("select count(*) from holdfast.scheduled_action").fetchone() == before
