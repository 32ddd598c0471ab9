"""``/metrics``: the same whoever answers, of one tenant, with few labels, and nothing lost when a worker dies."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from prometheus_client.parser import text_string_to_metric_families
from running import RECORDED, Running, event, wait_until
from test_api import another_tenant
from test_hook_routes import agent_of, locked
from test_workers import worker_ids

from holdfast.testing import PATIENCE

Db = psycopg.Connection[Any]
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def scraped(client: httpx.Client) -> Samples:
    answer = client.get("/metrics")
    assert answer.status_code == 200 and answer.headers["content-type"].startswith("text/plain; version=")
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(answer.text)
        for sample in family.samples
    }


def value(samples: Samples, name: str, **labels: str) -> float | None:
    return samples.get((f"holdfast_{name}", frozenset(({"tenant": "default"} | labels).items())))


def test_the_database_is_shown_as_it_is(server: Running, db: Db) -> None:
    with server.client() as client:
        client.post("/hook", json=event("SessionStart", "idle"))
        client.post("/hook", json=event("UserPromptSubmit", "commanded", prompt="x"))
        client.post("/hook", json=event("UserPromptSubmit", "asks", prompt="x"))
        client.post("/hook", json=event("Stop", "asks", last_assistant_message="Shall I?"))
        client.post("/hook", json=event("UserPromptSubmit", "done", prompt="x"))
        client.post("/hook", json=event("Stop", "done", last_assistant_message="Done."))
        for report in RECORDED:
            client.post("/hook", json=report)
        wait_until(lambda: value(scraped(client), "agents", state="ENDED") == 1, "its end is worked off")
        agent = agent_of(db, "idle")
        with locked(db, agent):
            client.post("/hook", json=event("SessionEnd", "idle"))
            db.execute("update holdfast.event set received_at = now() - interval '1 h' where status = 'pending'")
            db.execute(
                "insert into holdfast.event (agent_id, number, name, payload, digest, status, processed_at)"
                " values (%s, 99, 'Bad', '{}', '', 'set_aside', now())",
                (agent,),
            )
            for status, settled in (("waiting", None), ("set_aside", "now"), ("set_aside", "now")):
                db.execute(
                    "insert into holdfast.outbox (agent_id, kind, source, payload, status, settled_at)"
                    " values (%s, 'ended', gen_random_uuid(), '{}', %s, %s)",
                    (agent, status, settled),
                )
            shown = scraped(client)
    states = {state: value(shown, "agents", state=state) for state in ("IDLE", "COMMANDED", "AWAITING_INPUT", "ENDED")}
    assert states == {"IDLE": 2, "COMMANDED": 1, "AWAITING_INPUT": 1, "ENDED": 1}
    assert value(shown, "agents", state="PROCESSING") == 0, "states that nobody is in are shown, too"
    assert value(shown, "inbox_events") == 1 and value(shown, "inbox_set_aside_events") == 1
    assert 3600 <= (value(shown, "inbox_oldest_seconds") or 0) < 3700
    assert value(shown, "outbox_messages") == 1 and value(shown, "outbox_set_aside_messages") == 2


def test_hooks_are_counted_by_route_and_outcome_with_how_long_they_took(server: Running, db: Db) -> None:
    with server.client() as client:
        before = scraped(client)
        client.post("/hook/stop", json=event("Stop"))
        client.post("/hook/stop", json=event("Stop"))
        client.post("/hook/stop", json=event("Note"))
        client.post("/hook/session-end", json=event("SessionEnd"))
        client.post("/hook", json=event("Note", hook_event_name="made-up", session_id="made-up"))
        httpx.post(f"{server.address}/hook/stop", json=event("Stop"), timeout=PATIENCE)
        after = scraped(client)

    def grown(name: str, **labels: str) -> float:
        return (value(after, name, **labels) or 0) - (value(before, name, **labels) or 0)

    counted = ["stop processed", "stop duplicate", "stop refused", "session-end stored", "any processed"]
    for route, outcome in map(str.split, counted):
        assert grown("hook_requests_total", route=route, outcome=outcome) == 1, (route, outcome)
    assert grown("hook_requests_total", route="stop", outcome="refused", tenant="") == 1, "without a token: nobody's"
    assert grown("hook_duration_seconds_count", route="stop") == 3
    assert grown("agent_lock_wait_seconds_count") == 3, "those that wait for it"
    assert not any("made-up" in labels for _, pairs in after for _, labels in pairs), "no label is what a client sent"


def test_a_wait_for_the_lock_is_measured_though_it_was_in_vain(start: Callable[..., Running], db: Db) -> None:
    server = start(HOLDFAST_HOOK_WAIT="0.3")
    with server.client() as client:
        client.post("/hook", json=event("Note"))
        before = value(scraped(client), "agent_lock_wait_seconds_sum") or 0
        with locked(db, agent_of(db)):
            assert client.post("/hook", json=event("Stop")).status_code == 202
            waited = (value(scraped(client), "agent_lock_wait_seconds_sum") or 0) - before
    assert waited >= 0.29


def test_a_tenant_sees_its_own_figures_only(server: Running, db: Db) -> None:
    with server.client() as client, another_tenant(server, db) as other:
        client.post("/hook", json=event("SessionStart", "ours"))
        other.post("/hook", json=event("SessionStart", "theirs"))
        other.post("/hook", json=event("SessionStart", "theirs-too"))
        ours, theirs = scraped(client), scraped(other)
    assert value(ours, "agents", state="IDLE") == 1
    assert value(theirs, "agents", state="IDLE", tenant="another") == 2
    assert {dict(labels)["tenant"] for _, labels in theirs} == {"another"}, "nor any that belong to nobody"
    assert {dict(labels).get("tenant", "") for _, labels in ours} == {"default", ""}
    assert ("python_info" in {name for name, _ in ours}) and ("python_info" not in {name for name, _ in theirs})


@pytest.mark.parametrize(("scope", "status"), [("hook", 403), (None, 401)])
def test_it_is_for_the_scope_read(server: Running, scope: str | None, status: int) -> None:
    token = (server.data / "hook-token").read_text().strip() if scope else "none"
    with server.client(headers={"Authorization": f"Bearer {token}"}) as client:
        assert client.get("/metrics").status_code == status


def test_figures_of_several_workers_add_up_also_after_one_was_killed(start: Callable[..., Running], db: Db) -> None:
    server = start(HOLDFAST_WORKERS="2")
    wait_until(lambda: len(worker_ids(db)) == 2, "two workers listen")
    workers = worker_ids(db)
    sent = 0
    counts = "hook_requests_total", {"route": "any", "outcome": "processed"}

    def shown() -> float | None:
        with server.client() as client:  # a new connection each time: either worker may answer
            return value(scraped(client), counts[0], **counts[1])

    def send(number: int) -> None:
        for n in range(number):
            with server.client() as client:
                assert client.post("/hook", json=event("Note", n=(sent, n))).status_code == 200

    send(20)
    sent += 20
    assert [shown() for _ in range(8)] == [20] * 8
    os.kill(min(workers), signal.SIGKILL)
    wait_until(lambda: len(worker_ids(db) - workers) == 1, "a new worker came")
    send(10)
    assert [shown() for _ in range(8)] == [30] * 8
    folders = {folder for folder in _environment(max(worker_ids(db))) if folder.startswith("PROMETHEUS_MULTIPROC_DIR=")}
    (folder,) = (each.partition("=")[2] for each in folders)
    assert os.path.isdir(folder)
    assert server.terminate() == 0
    assert not os.path.exists(folder), "nothing is left"


def test_a_process_that_is_about_to_begin_its_figures_does_not_keep_those_of_others(
    start: Callable[..., Running], tmp_path: Path
) -> None:
    server = start(HOLDFAST_WORKERS="2", TMPDIR=str(tmp_path))
    (folder,) = tmp_path.glob("holdfast-metrics-*")
    (folder / "counter_1.db").touch()  # made, and not given its size yet
    with server.client() as client:
        client.post("/hook", json=event("Note"))
        assert value(scraped(client), "hook_requests_total", route="any", outcome="processed") == 1


def test_what_a_killed_server_has_left_is_swept_by_the_next_one(start: Callable[..., Running], tmp_path: Path) -> None:
    settings = {"HOLDFAST_WORKERS": "2", "TMPDIR": str(tmp_path)}

    def folders() -> set[Path]:
        return set(tmp_path.glob("holdfast-metrics-*"))

    killed = start(**settings)
    (left,) = folders()
    killed.kill()
    first = start(**settings)
    assert left in folders(), "it might be new"
    for folder in folders():
        os.utime(folder, (0, 0))
    second = start(**settings)
    assert left not in folders() and len(folders()) == 2, "those of servers that live stay"
    assert (first.terminate(), second.terminate()) == (0, 0)
    assert not folders()


def _environment(pid: int) -> list[str]:
    with open(f"/proc/{pid}/environ") as file:
        return file.read().split("\0")
