"""``/scheduled-actions`` and ``holdfast schedule``, on a real PostgreSQL."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import psycopg
import pytest
from actions_for_tests import advisory_locks, state_of
from fastapi import FastAPI
from instances import wait_until

from holdfast.cli import main as command
from holdfast.scheduler import ScheduledAction, Scheduler
from holdfast.scheduler.api import create_router
from holdfast.testing import PATIENCE

NEW = {"action_type": "send_notification", "name": "n", "action_config": {"message": "m"}}


def nested(levels: int) -> dict[str, Any]:
    inner: dict[str, Any] = {}
    for _ in range(levels - 1):
        inner = {"in": inner}
    return inner


def with_api(url: str | None, use: Any, **options: Any) -> None:
    async def main() -> None:
        scheduler = Scheduler(url, **options)
        app = FastAPI()
        app.include_router(create_router(scheduler))
        try:
            async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test") as client:
                await use(client, scheduler)
        finally:
            await scheduler.stop()

    asyncio.run(main())


@pytest.mark.parametrize("where", ["memory", "postgres"])
def test_the_life_of_an_action(request: pytest.FixtureRequest, where: str) -> None:
    async def use(client: httpx.AsyncClient, scheduler: Scheduler) -> None:
        made = await client.post(
            "/scheduled-actions", json={**NEW, "schedule_type": "interval", "interval_seconds": 60}
        )
        assert made.status_code == 201
        place = f"/scheduled-actions/{made.json()['id']}"
        assert (await client.get(place)).json() == made.json()
        assert (await client.get("/scheduled-actions")).json() == [made.json()]
        assert (await client.get("/scheduled-actions?status=paused")).json() == []
        changed = await client.patch(place, json={"interval_seconds": 90})
        assert changed.json()["interval_seconds"] == 90 and changed.json()["name"] == "n"
        assert (await client.post(f"{place}/pause")).json()["status"] == "paused"
        assert (await client.post(f"{place}/trigger")).status_code == 409
        assert (await client.post(f"{place}/resume")).json()["status"] == "active"
        triggered = await client.post(f"{place}/trigger", json={"payload": {"x": 1}})
        assert triggered.status_code == 202 and triggered.json()["payload"] == {"x": 1}
        again = await client.post(f"{place}/trigger")
        assert again.status_code == 409 and "not ended" in again.json()["detail"]
        await scheduler.start()
        async with asyncio.timeout(PATIENCE):
            while (runs := (await client.get(f"{place}/runs")).json())[-1]["state"] != "completed":  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert [run["state"] for run in runs] == ["skipped", "completed"]
        assert (await client.delete(place)).status_code == 204
        for gone in (
            client.get(place),
            client.delete(place),
            client.get(f"{place}/runs"),
            client.post(f"{place}/pause"),
        ):
            assert (await gone).status_code == 404

    with_api(None if where == "memory" else request.getfixturevalue("url"), use)


def test_an_event_is_fired_by_its_name_whatever_that_is() -> None:
    async def use(client: httpx.AsyncClient, scheduler: Scheduler) -> None:
        for event in ("deployed", "prod/api deployed", "pause"):
            made = (await client.post("/scheduled-actions", json={**NEW, "event": event})).json()
            place = f"/scheduled-actions/events/{quote(event)}"
            (fired,) = (await client.post(place, json={"payload": {"version": 7}})).json()
            assert (fired["action_id"], fired["trigger"], fired["state"]) == (made["id"], "event", "pending")
            assert fired["payload"] == {"version": 7}
            again = await client.post(place)
            assert (again.status_code, [run["state"] for run in again.json()]) == (202, ["skipped"])
        nobody = await client.post("/scheduled-actions/events/unheard of")
        assert (nobody.status_code, nobody.json()) == (202, [])
        for wrong in ("", "x" * 201, "a%00b"):
            answer = await client.post(f"/scheduled-actions/events/{wrong}")
            assert answer.status_code == 422 and answer.json()["detail"][0]["loc"] == ["path", "event"]
        large = await client.post("/scheduled-actions/events/deployed", json={"payload": "x" * 300_000})
        assert large.status_code == 422 and large.json()["detail"][0]["loc"] == ["body", "payload"]

    with_api(None, use)


def test_what_the_api_takes_is_described_by_the_fields_of_an_action() -> None:
    app = FastAPI()
    app.include_router(create_router(Scheduler()))
    models = app.openapi()["components"]["schemas"]
    new, changes, shown = (models[name] for name in ("NewAction", "ActionChanges", "ScheduledAction"))
    assert set(new["properties"]) == set(shown["properties"]) - {
        "id", "execution_count", "next_occurrence", "next_run_at", "last_run_at", "created_at", "updated_at"
    }  # fmt: skip
    assert set(changes["properties"]) == set(new["properties"]) - {"status"}
    assert new["required"] == ["action_type"] and "required" not in changes
    assert new["properties"]["max_retries"] == {
        "type": "integer", "default": 0, "title": "Max Retries",
        "description": "How many attempts there may be after the first has failed.",
    }  # fmt: skip
    assert not [name for name, field in changes["properties"].items() if "default" in field]
    assert changes["properties"]["misfire"]["description"] == shown["properties"]["misfire"]["description"]


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("cron_expression", {"schedule_type": "cron", "cron_expression": "nonsense"}),
        ("timezone", {"timezone": "Mars/Olympus"}),
        ("interval_seconds", {"schedule_type": "interval", "interval_seconds": 0.1}),
        ("action_type", {"action_type": "unheard_of"}),
        ("run_at", {"schedule_type": "once", "run_at": "2020-01-01T00:00:00Z"}),
        ("schedule_type", {"schedule_type": "never"}),
        ("max_retries", {"max_retries": -1}),
        ("unknown", {"unknown": 1}),
        ("id", {"id": 7}),
        ("name", {"name": "\x00"}),
        ("max_retries", {"max_retries": float("nan")}),
        ("max_retries", {"max_retries": "\ud800"}),
        ("action_config", {"action_config": {"message": float("inf")}}),
        ("action_config", {"action_config": nested(101)}),
    ],
)
def test_bad_input_is_a_422_that_names_the_field(field: str, wrong: dict[str, Any]) -> None:
    as_json = {"Content-Type": "application/json"}  # httpx itself would refuse some of it

    async def use(client: httpx.AsyncClient, scheduler: Scheduler) -> None:
        answer = await client.post("/scheduled-actions", content=json.dumps({**NEW, **wrong}), headers=as_json)
        assert answer.status_code == 422 and answer.json()["detail"][0]["loc"][:2] == ["body", field]
        made = (await client.post("/scheduled-actions", json=NEW)).json()
        place = f"/scheduled-actions/{made['id']}"
        changed = await client.patch(place, content=json.dumps(wrong), headers=as_json)
        assert changed.status_code == 422 and changed.json()["detail"][0]["loc"][:2] == ["body", field]
        assert (await client.get("/scheduled-actions")).json() == [made]

    with_api(None, use)


@pytest.mark.parametrize("where", ["memory", "postgres"])
def test_whatever_a_run_has_brought_its_runs_can_be_shown(request: pytest.FixtureRequest, where: str) -> None:
    async def use(client: httpx.AsyncClient, scheduler: Scheduler) -> None:
        made = await scheduler.add(ScheduledAction(action_type="deep", action_config=nested(100)))
        await scheduler.start()
        await scheduler.trigger(made.id or 0, nested(100))
        async with asyncio.timeout(PATIENCE):
            while not (await scheduler.runs(made.id or 0))[0].state.final:  # noqa: ASYNC110  it tells nobody
                await asyncio.sleep(0.01)
        shown = await client.get(f"/scheduled-actions/{made.id}/runs")
        assert shown.status_code == 200 and shown.json()[0]["result"].keys() == {"repr"}
        assert (await client.get("/scheduled-actions")).status_code == 200

    url = request.getfixturevalue("url") if where == "postgres" else None
    with_api(url, use, dispatchers={"deep": lambda execution: nested(900)})


def test_a_database_that_is_away_is_a_503() -> None:
    async def use(client: httpx.AsyncClient, scheduler: Scheduler) -> None:
        answer = await client.get("/scheduled-actions")
        assert answer.status_code == 503 and "secret" not in answer.text

    with_api("postgresql://u:secret@127.0.0.1:1/nothing", use)


@pytest.mark.parametrize(
    "path", ["0", "-1", "2147483648", "99999999999999999999", "x", "1/runs?limit=0", "1/runs?before=-1"]
)
def test_odd_ids_and_pages_are_the_callers_mistake(url: str, path: str) -> None:
    async def use(client: httpx.AsyncClient, scheduler: Scheduler) -> None:
        assert (await client.get(f"/scheduled-actions/{path}")).status_code == 422

    with_api(url, use)


def test_the_command_line_adds_shows_and_removes(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOLDFAST_DATABASE_URL", url)

    def says(*words: str, code: int = 0) -> str:
        assert command(["schedule", *words]) == code
        return capsys.readouterr().out.strip()

    number = says("add", "nightly", "--task", "my.tasks:nightly", "--cron", "0 3 * * *", "--timezone", "Europe/Berlin")
    (line,) = says("list").splitlines()
    assert line.split("\t")[:5] == [number, "nightly", "run_task", "cron", "active"]
    assert json.loads(says("list", "--json"))["action_config"] == {"task": "my.tasks:nightly"}
    says("pause", number)
    says("trigger", number, code=1)
    says("resume", number)
    assert "pending" in says("trigger", number)
    assert "not ended" in says("trigger", number, code=1)
    assert [line.split("\t")[3] for line in says("runs", number).splitlines()] == ["skipped", "pending"]
    says("rm", number)
    assert says("list") == ""
    waiting = says("add", "on deploy", "--task", "my.tasks:nightly", "--event", "deployed", "--allow-concurrent")
    assert says("fire", "deployed", "--payload", '{"version": 7}').endswith(f"of action {waiting}: pending")
    assert json.loads(says("runs", waiting, "--json"))["payload"] == {"version": 7}
    assert says("fire", "unheard of", code=1) == ""
    says("trigger", waiting, "--payload", "8")
    says("rm", waiting)
    for timeout, kept in (([], 3600.0), (["--timeout", "5"], 5.0), (["--timeout", "none"], None)):
        number = says("add", "x", "--task", "my.tasks:nightly", *timeout)
        assert json.loads(says("list", "--json"))["timeout_seconds"] == kept
        says("rm", number)
    for wrong in (
        ["rm", number], ["runs", "-5"], ["add", "x", "--cron", "nonsense"], ["add", "x", "--config", "{"],
        ["add", "x", "--config", "1"], ["fire", "deployed", "--payload", "{"], ["fire", ""],
    ):  # fmt: skip
        assert command(["schedule", *wrong]) == 1
        assert capsys.readouterr().err.startswith("holdfast: ")


def test_a_worker_runs_what_it_imports_and_is_drained_by_sigterm(
    url: str, tmp_path: Path, db: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_tasks.py").write_text(
        "import asyncio, os\nfrom holdfast.scheduler import register_task\n\n"
        "@register_task('slow')\nasync def slow():\n"
        "    while not os.path.exists('gate'):\n        await asyncio.sleep(0.01)\n"
        "    await asyncio.sleep(0.1)  # in which it hears of a signal that came before\n"
    )
    monkeypatch.setenv("HOLDFAST_DATABASE_URL", url)
    words = [sys.executable, "-m", "holdfast.cli", "schedule", "worker", "--import", "my_tasks"]
    worker = subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, text=True, env=dict(os.environ))
    try:
        assert worker.stdout is not None and "is at work" in worker.stdout.readline()
        assert command(["schedule", "add", "slow", "--task", "slow"]) == 0
        assert command(["schedule", "trigger", "1"]) == 0
        wait_until(lambda: state_of(db, 1) == "running", "it to begin")
        worker.send_signal(signal.SIGTERM)
        (tmp_path / "gate").touch()
        assert worker.wait(PATIENCE) == 0
        assert state_of(db, 1) == "completed"
        assert not advisory_locks(db)
    finally:
        worker.kill()
        worker.communicate()
