"""A server is killed, told to stop, or loses its database: nothing that was accepted is lost, nothing is left over."""

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from running import RECORDED, Running, event, wait_until
from test_hook_routes import agent_of, locked, pending

from holdfast import schema
from holdfast.embedded import start_postgres
from holdfast.testing import PATIENCE, Stopwatch

Db = psycopg.Connection[Any]


def post_without_waiting(server: Running, *reports: dict[str, Any]) -> Callable[[], list[httpx.Response | Exception]]:
    """Sends from a thread. What is returned waits for the answers."""
    answers: list[httpx.Response | Exception] = []

    def send(report: dict[str, Any]) -> None:
        try:
            with server.client() as client:
                answers.append(client.post("/hook", json=report))
        except httpx.TransportError as error:
            answers.append(error)

    threads = [threading.Thread(target=send, args=(report,)) for report in reports]
    for thread in threads:
        thread.start()

    def join() -> list[httpx.Response | Exception]:
        for thread in threads:
            thread.join()
        return answers

    return join


def test_killed_between_storing_and_processing_nothing_is_lost(start: Callable[..., Running], db: Db) -> None:
    server = start()
    session = RECORDED[0]["session_id"]
    with server.client() as client:
        client.post("/hook", json=RECORDED[0])
    with locked(db, agent_of(db, session)):
        joins = []
        for number, report in enumerate(RECORDED[1:], 1):
            joins.append(post_without_waiting(server, report))
            wait_until(lambda number=number: pending(db) == number, "it was not stored")  # type: ignore[misc]
        server.kill()
        for join in joins:
            join()
    assert pending(db) == 5
    start()
    wait_until(lambda: not pending(db), "what was left was not worked off")
    done = db.execute("select name, effect from holdfast.event order by processed_at").fetchall()
    assert [name for name, _ in done] == [report["hook_event_name"] for report in RECORDED]
    assert [effect for _, effect in done] == ["registered", "opened", "at work", "progress", "completed", "ended"]


def test_a_living_server_works_off_what_a_killed_one_has_left(start: Callable[..., Running], db: Db) -> None:
    killed, _living = start(), start()
    with killed.client() as client:
        client.post("/hook", json=event("Note"))
    with locked(db, agent_of(db)):
        join = post_without_waiting(killed, event("UserPromptSubmit", prompt="x"))
        wait_until(lambda: pending(db) == 1, "it was not stored")
        killed.kill()
        join()
    wait_until(lambda: not pending(db), "what was left was not worked off")


def test_told_to_stop_it_answers_whoever_waits_and_leaves_no_lock(start: Callable[..., Running], db: Db) -> None:
    server = start()
    with server.client() as client:
        client.post("/hook", json=event("Note"))
    agent = agent_of(db)
    with locked(db, agent):
        join = post_without_waiting(server, *(event("PostToolUse", tool_use_id=f"t{n}") for n in range(10)))
        wait_until(lambda: pending(db) == 10, "they were not stored")
        watch = Stopwatch()
        assert server.terminate() == 0
        assert watch.awake < 10, "nobody waits for a lock any more"
        answers = join()
        assert {getattr(answer, "status_code", answer) for answer in answers} == {202}
        # Waited for: PostgreSQL's processes end a moment after their connections; one in a lock's queue must, too.
        others = "select pid from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
        left = f"{others} and backend_type = 'client backend'"
        wait_until(lambda: not db.execute(left).fetchall(), "a connection, and so perhaps a lock, is left")
    assert pending(db) == 10
    start()
    wait_until(lambda: not pending(db), "what was left was not worked off")


@pytest.mark.parametrize("mode", [signal.SIGINT, signal.SIGQUIT], ids=["fast", "immediate"])
def test_the_database_is_restarted_under_load(tmp_path: Path, mode: signal.Signals) -> None:
    settings = {"synchronous_commit": "on", "fsync": "off"}
    with start_postgres(tmp_path / "pg", options=settings) as postgres:
        schema.upgrade(postgres.url)
        with Running({"HOLDFAST_DATABASE_URL": postgres.url}, tmp_path / "data") as server:
            accepted = asyncio.run(_load_while_restarting(server, tmp_path, mode, settings))
            with psycopg.connect(postgres.url, autocommit=True) as db:
                wait_until(lambda: not pending(db), "the inbox was not worked off")
                stored = {key for (key,) in db.execute("select identity from holdfast.event")}
                assert accepted <= stored, "what was accepted is there"
                assert db.execute("select count(*) from holdfast.event where status <> 'done'").fetchone() == (0,)
                for agent in range(6):
                    done = db.execute(
                        "select number from holdfast.event where agent_id = %s order by processed_at",
                        (agent_of(db, f"s{agent}"),),
                    ).fetchall()
                    assert done == sorted(done), "in order"
            wait_until(server.is_ready, "it is not ready again")
            assert server.terminate() == 0
        assert "Traceback" not in server.log.read_text()


async def _load_while_restarting(
    server: Running, folder: Path, mode: signal.Signals, settings: dict[str, str]
) -> set[str]:
    """Six agents report without pause; amid that the database goes down and comes up again. What was accepted."""
    accepted: set[str] = set()
    statuses: set[int] = set()
    going = True

    async def report(client: httpx.AsyncClient, agent: int) -> None:
        number = 0
        while going:
            number += 1
            tool = f"a{agent}n{number}"
            answer = await client.post("/hook", json=event("PostToolUse", f"s{agent}", tool_use_id=tool))
            statuses.add(answer.status_code)
            if answer.is_success:
                accepted.add(f"PostToolUse {tool}")

    async with server.async_client() as client, asyncio.TaskGroup() as agents:
        for agent in range(6):
            agents.create_task(report(client, agent))

        async def more_than(count: int) -> None:
            async with asyncio.timeout(2 * PATIENCE):
                while len(accepted) <= count:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)

        await more_than(30)
        os.kill(int((folder / "pg" / "postgres" / "cluster" / "postmaster.pid").read_text().split()[0]), mode)
        again = await asyncio.to_thread(start_postgres, folder / "pg", options=settings)
        await more_than(len(accepted) + 30)
        going = False
    again.close()
    assert statuses <= {200, 202, 503}, "never a 500"
    return accepted


def test_a_database_that_cannot_be_asked_is_told_by_a_503(tmp_path: Path) -> None:
    """Not by a 500, nor by a 200 that says there is nothing."""
    with start_postgres(tmp_path / "pg", options={"fsync": "off"}) as postgres:
        with Running({"HOLDFAST_DATABASE_URL": postgres.url}, tmp_path / "data") as server:
            postmaster = int((tmp_path / "pg/postgres/cluster/postmaster.pid").read_text().split()[0])
            os.kill(postmaster, signal.SIGQUIT)
            # It ends as the last: until then, one of its connections may work while another does not.
            wait_until(lambda: not Path(f"/proc/{postmaster}").exists(), "it does not end")
            wait_until(lambda: not server.is_ready(), "it is ready")
            with server.client() as client:
                for path in ("/api/advisory-locks", "/api/agents", "/hook/status", "/metrics", "/health"):
                    assert client.get(path).status_code == 503, path
                assert client.post("/hook", json=event("Note")).status_code == 503
                assert client.get("/health/live").status_code == 200


def test_secrets_are_in_no_log_and_no_answer(tmp_path: Path, database_with_tables: str) -> None:
    """A fault run with a password in the address, and a token that is unknown."""
    secret, url = "s3cret-pass", database_with_tables
    address = url.replace("@/", f":{secret}@/")
    with Running({"HOLDFAST_DATABASE_URL": address}, tmp_path / "data") as server:
        with server.client() as client:
            client.post("/hook", json=event("UserPromptSubmit", prompt="my words"))
            answer = client.post("/hook", json=event("Note"), headers={"Authorization": "Bearer hf_" + "x" * 40})
            assert answer.status_code == 401 and "hf_x" not in answer.text
        with psycopg.connect(url, autocommit=True) as db:
            its = "application_name like 'holdfast%' and datname = current_database()"
            db.execute(f"select pg_terminate_backend(pid) from pg_stat_activity where {its}")
        server.terminate()
        log = server.log.read_text()
    for hidden in (secret, server.token, "my words"):
        assert hidden not in log


def test_without_an_address_it_brings_its_own_database_and_keeps_what_was_stored(tmp_path: Path) -> None:
    with Running({}, tmp_path / "data") as server:
        token = server.token
        with server.client() as client:
            assert client.post("/hook", json=event("UserPromptSubmit", prompt="x")).status_code == 200
        assert server.terminate() == 0
    assert not (tmp_path / "data" / "postgres" / "cluster" / "postmaster.pid").exists(), "it is stopped"
    with Running({}, tmp_path / "data") as server:
        assert server.token == token
        with server.client() as client:
            (agent,) = client.get("/api/agents").json()["agents"]
            assert agent["state"] == "COMMANDED"
        # Two servers of one folder share its database.
        with Running({}, tmp_path / "data") as second, second.client() as client:
            assert client.post("/hook", json=event("Stop", last_assistant_message="Done.")).status_code == 200
        with server.client() as client:
            assert client.get("/api/agents").json()["agents"][0]["command"]["state"] == "COMPLETE"


def test_a_database_that_cannot_be_reached_is_told_without_its_password(tmp_path: Path) -> None:
    environment = os.environ | {
        "HOLDFAST_DATABASE_URL": "postgresql://app:s3cret@127.0.0.1:1/app",
        "HOLDFAST_PORT": "0",
    }
    command = [sys.executable, "-m", "holdfast.cli", "serve", "--data-dir", str(tmp_path)]
    outcome = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=tmp_path)
    assert outcome.returncode == 1
    assert outcome.stderr.startswith("holdfast: ") and "s3cret" not in outcome.stderr


def test_a_port_that_is_taken_is_told(start: Callable[..., Running], url: str, tmp_path: Path) -> None:
    port = start().address.rpartition(":")[2]
    environment = os.environ | {"HOLDFAST_DATABASE_URL": url}
    command = [sys.executable, "-m", "holdfast.cli", "serve", "--port", port, "--data-dir", str(tmp_path)]
    outcome = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=tmp_path)
    assert outcome.returncode == 1
    assert outcome.stderr.startswith("holdfast: cannot listen on 127.0.0.1")
