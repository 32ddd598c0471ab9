"""The hook routes of a server that runs: real payloads, order, duplicates, locks, and what is not done in time."""

import asyncio
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import psycopg
import pytest
from running import RECORDED, Running, event, wait_until

from holdfast import LockNamespace
from holdfast.hooks.folders import spool_dir
from holdfast.hooks.spool import Spool
from holdfast.server.hooks import ROUTES
from holdfast.testing import PATIENCE, Stopwatch

Db = psycopg.Connection[Any]


@contextmanager
def locked(db: Db, *agents: int) -> Iterator[None]:
    """As if another process were at work on these agents."""
    for agent in agents:
        db.execute("select pg_advisory_lock(%s::int, %s::int)", (LockNamespace.AGENT, agent))
    try:
        yield
    finally:
        db.execute("select pg_advisory_unlock_all()")


def agent_of(db: Db, session: str = "s1") -> int:
    row = db.execute("select id from holdfast.agent where session_id = %s", (session,)).fetchone()
    assert row is not None
    return int(row[0])


def pending(db: Db) -> int:
    row = db.execute("select count(*) from holdfast.event where status = 'pending'").fetchone()
    assert row is not None
    return int(row[0])


def route(report: dict[str, Any]) -> str:
    return next(f"/hook/{path}" for path, name in ROUTES.items() if name == report["hook_event_name"])


@pytest.mark.parametrize("address", [route, lambda _: "/hook"], ids=["by its own route", "by /hook"])
def test_the_recorded_session_ends_in_the_right_rows(
    server: Running, db: Db, address: Callable[[dict[str, Any]], str]
) -> None:
    with server.client() as client:
        answers = [client.post(address(report), json=report) for report in RECORDED]
    assert [answer.status_code for answer in answers] == [200] * 5 + [202]
    assert [answer.headers["Holdfast-Outcome"] for answer in answers] == ["processed"] * 5 + ["stored"]
    assert all(answer.content == b"" for answer in answers), "a body would be a decision"
    wait_until(lambda: not pending(db), "SessionEnd was not worked off")
    assert db.execute("select state, completed_at is not null from holdfast.command").fetchall() == [("COMPLETE", True)]
    assert db.execute("select ended_at is not null from holdfast.agent").fetchall() == [(True,)]
    assert db.execute("select actor, intent from holdfast.turn order by number").fetchall() == [
        ("USER", "COMMAND"),
        ("AGENT", "PROGRESS"),
        ("AGENT", "COMPLETION"),
    ]


OTHERS = [
    event("Notification", message="Claude needs your permission", notification_type="permission_prompt"),
    event("PermissionRequest", tool_name="Bash", tool_input={"command": "rm"}),
]


@pytest.mark.parametrize("report", [*RECORDED, *OTHERS], ids=lambda report: report["hook_event_name"])
def test_each_route_takes_the_agents_lock_first(server: Running, db: Db, report: dict[str, Any]) -> None:
    with server.client() as client:
        client.post("/hook", json=event("Note", session=report["session_id"]))
        before = db.execute("select * from holdfast.command").fetchall()
        agent = agent_of(db, report["session_id"])
        with locked(db, agent):
            waiting = "select from pg_locks where locktype = 'advisory' and classid = 1 and objid = %s and not granted"
            answer = asyncio.run(_post_until(server, report, lambda: db.execute(waiting, (agent,)).fetchone()))
            assert db.execute("select * from holdfast.command").fetchall() == before
            assert pending(db) == 1, "it is stored before it is answered"
        if answer is not None:
            assert (answer.status_code, report["hook_event_name"]) == (202, "SessionEnd")
    wait_until(lambda: not pending(db), "it was never worked off")


async def _post_until(server: Running, report: dict[str, Any], waits: Callable[[], Any]) -> httpx.Response | None:
    """Posts, and comes back when the server waits for the lock. The answer, if there is one by then."""
    async with server.async_client() as client:
        posted = asyncio.create_task(client.post(route(report), json=report))
        async with asyncio.timeout(PATIENCE):
            while waits() is None:  # noqa: ASYNC110  the server is another process
                await asyncio.sleep(0.01)
        if not posted.done():
            posted.cancel()
            await asyncio.gather(posted, return_exceptions=True)
            return None
        return posted.result()


def test_a_second_hook_sees_the_first_ones_state(server: Running, db: Db) -> None:
    with server.client() as client:
        client.post("/hook", json=event("UserPromptSubmit", prompt="do it", prompt_id="1"))
        client.post("/hook", json=event("Stop", last_assistant_message="Shall I?", prompt_id="1"))
        client.post("/hook", json=event("UserPromptSubmit", prompt="yes", prompt_id="2"))
    assert db.execute("select state from holdfast.command").fetchall() == [("PROCESSING",)]


@pytest.mark.parametrize("report", [*RECORDED, *OTHERS], ids=lambda report: report["hook_event_name"])
def test_a_duplicate_has_one_effect(server: Running, db: Db, report: dict[str, Any]) -> None:
    async def twice() -> list[httpx.Response]:
        async with server.async_client() as client:
            return await asyncio.gather(*(client.post("/hook", json=report) for _ in range(5)))

    answers = asyncio.run(twice())
    assert all(answer.is_success and answer.content == b"" for answer in answers)
    assert {answer.headers["Holdfast-Event"] for answer in answers} == {"1"}
    assert db.execute("select count(*) from holdfast.event").fetchone() == (1,)


def test_what_the_shim_delivers_twice_is_taken_once(server: Running, db: Db) -> None:
    with server.client() as client:
        for delivery in ("1", "1", "2"):
            client.post("/hook", json=event("SessionStart"), headers={"Holdfast-Delivery": delivery})
    assert db.execute("select delivery_id from holdfast.event order by number").fetchall() == [("1",), ("2",)]


def test_two_hundred_hooks_on_one_agent_through_two_servers_are_done_in_order(
    start: Callable[..., Running], db: Db
) -> None:
    # The last of them waits for all others, however long they take: that is not what is asked here.
    waits, patience = f"{3 * PATIENCE}", 4 * PATIENCE
    servers = [start(HOLDFAST_HOOK_WAIT=waits), start(HOLDFAST_HOOK_WAIT=waits)]

    async def storm() -> list[httpx.Response]:
        async with servers[0].async_client(timeout=patience) as one, servers[1].async_client(timeout=patience) as other:
            tool = {"tool_name": "Bash"}
            reports = [event("PostToolUse", **tool, tool_use_id=f"t{n}") for n in range(200)]
            return await asyncio.gather(
                *((one, other)[n % 2].post("/hook/post-tool-use", json=report) for n, report in enumerate(reports))
            )

    answers = asyncio.run(storm())
    assert {answer.status_code for answer in answers} == {200}
    assert {answer.headers["Holdfast-Outcome"] for answer in answers} == {"processed"}
    done = db.execute("select number, status from holdfast.event order by processed_at").fetchall()
    assert done == [(number, "done") for number in range(1, 201)]
    # One turn for each, in the same order.
    turns = db.execute(
        "select t.number, e.number from holdfast.turn t join holdfast.event e on e.id = t.event_id order by t.number"
    ).fetchall()
    assert turns == [(number, number) for number in range(1, 201)]


def test_several_workers_serve_one_agent_in_order(start: Callable[..., Running], db: Db) -> None:
    server = start(HOLDFAST_WORKERS="2")

    async def storm() -> None:
        # A connection each, so that both workers get some.
        async def one(n: int) -> None:
            async with server.async_client() as client:
                (await client.post("/hook", json=event("PostToolUse", tool_use_id=f"t{n}"))).raise_for_status()

        await asyncio.gather(*(one(n) for n in range(40)))

    asyncio.run(storm())
    done = [number for (number,) in db.execute("select number from holdfast.event order by processed_at")]
    assert done == list(range(1, 41))
    assert server.terminate() == 0


def test_twenty_five_hooks_on_twenty_five_agents_all_succeed_and_others_are_served_meanwhile(
    server: Running, db: Db
) -> None:
    sessions = [f"s{n}" for n in range(25)]

    async def storm() -> tuple[list[httpx.Response], float]:
        async with server.async_client() as client:
            await asyncio.gather(*(client.post("/hook", json=event("Note", session=session)) for session in sessions))
            agents = [agent_of(db, session) for session in sessions]
            with locked(db, *agents):
                prompts = [event("UserPromptSubmit", session=session, prompt="x") for session in sessions]
                posted = [asyncio.create_task(client.post("/hook", json=prompt)) for prompt in prompts]
                async with asyncio.timeout(PATIENCE):
                    while pending(db) < 25:  # noqa: ASYNC110  the server is another process
                        await asyncio.sleep(0.01)
                watch = Stopwatch()
                status = await client.get("/hook/status")
                took = watch.awake
                assert status.json().items() >= {"agents": 25, "pending": 25, "set_aside": 0}.items()
            return await asyncio.gather(*posted), took

    answers, took = asyncio.run(storm())
    assert {(answer.status_code, answer.headers["Holdfast-Outcome"]) for answer in answers} == {(200, "processed")}
    assert took < 1, "an unrelated request waited for agents that are locked"
    assert db.execute("select count(*) from holdfast.command").fetchone() == (25,)


def test_transactions_that_take_long_leave_connections_for_others(server: Running, url: str, db: Db) -> None:
    """Twenty-five agents are at work, and none gets on, on a pool of twenty-five connections."""
    sessions = [f"s{n}" for n in range(25)]
    stuck = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"

    def all_stuck() -> bool:
        row = db.execute(stuck).fetchone()
        return row is not None and row[0] >= 20 and pending(db) == 25

    async def storm() -> list[httpx.Response]:
        async with server.async_client() as client:
            await asyncio.gather(*(client.post("/hook", json=event("Note", session=session)) for session in sessions))
            with psycopg.connect(url) as slow:
                slow.execute("select from holdfast.agent for no key update")
                prompts = [event("UserPromptSubmit", session=session, prompt="x") for session in sessions]
                posted = [asyncio.create_task(client.post("/hook", json=prompt)) for prompt in prompts]
                async with asyncio.timeout(PATIENCE):
                    while not all_stuck():  # noqa: ASYNC110  the server is another process
                        await asyncio.sleep(0.01)
                watch = Stopwatch()
                async with asyncio.timeout(PATIENCE):
                    assert (await client.get("/hook/status")).json()["pending"] == 25
                    assert (await client.post("/hook", json=event("SessionEnd", session="s0"))).status_code == 202
                assert watch.awake < 1, "a connection was waited for"
                slow.rollback()
            return await asyncio.gather(*posted)

    assert {answer.status_code for answer in asyncio.run(storm())} == {200}


def test_what_is_not_in_time_is_answered_202_and_worked_off_in_its_place(start: Callable[..., Running], db: Db) -> None:
    server = start(HOLDFAST_HOOK_WAIT="0.2")
    with server.client() as client:
        client.post("/hook", json=event("Note"))
        with locked(db, agent_of(db)):
            answer = client.post("/hook", json=event("UserPromptSubmit", prompt="x"))
            assert (answer.status_code, answer.headers["Holdfast-Outcome"], answer.content) == (202, "stored", b"")
            assert db.execute("select count(*) from holdfast.command").fetchone() == (0,)
        wait_until(lambda: not pending(db), "it was never worked off")
    assert db.execute("select state from holdfast.command").fetchall() == [("COMMANDED",)]


def test_session_end_is_answered_at_once_and_ends_what_came_before_it(server: Running, db: Db) -> None:
    with server.client() as client:
        client.post("/hook", json=event("UserPromptSubmit", prompt="x"))
        with locked(db, agent_of(db)):
            watch = Stopwatch()
            assert client.post("/hook/session-end", json=event("SessionEnd", reason="logout")).status_code == 202
            assert watch.awake < 1
            assert db.execute("select ended_at from holdfast.agent").fetchone() == (None,)
        wait_until(lambda: not pending(db), "it was never worked off")
    assert db.execute("select end_reason from holdfast.agent").fetchone() == ("logout",)
    assert db.execute("select state from holdfast.command").fetchall() == [("COMPLETE",)]


def test_unknown_events_and_fields_are_kept(server: Running, db: Db) -> None:
    strange = event("BrandNewEvent", things=[{"a": 1.5e300, "b": "\0", "ü": None}])
    with server.client() as client:
        assert client.post("/hook", json=strange).status_code == 200
    row = db.execute("select name, effect, payload::text from holdfast.event").fetchone()
    assert row is not None and row[:2] == ("BrandNewEvent", "kept")
    assert json.loads(row[2]) == strange


def test_what_a_shim_has_spooled_is_fetched_by_the_server_and_comes_late(server: Running, db: Db) -> None:
    with server.client() as client:
        client.post("/hook", json=event("SessionEnd", reason="logout"))
    spool = Spool(spool_dir(server.data, server.address))
    spool.add("d1", json.dumps(event("SessionStart", source="startup", model="m")).encode())
    wait_until(lambda: spool.empty, "the spool was not fetched")
    assert db.execute("select name, late from holdfast.event order by number").fetchall()[-1] == ("SessionStart", True)
    row = db.execute("select model, ended_at is not null from holdfast.agent").fetchone()
    assert row == ("m", True), "it fills gaps, and revives nobody"
