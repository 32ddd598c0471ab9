"""Agents that were not heard of for long are forgotten, and nobody else; and nothing that comes meanwhile is lost."""

import asyncio
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
from crew import Crew, crew, event

from holdfast.agents import retention
from holdfast.agents.outbox import Kind
from holdfast.agents.retention import Retention
from holdfast.testing import PATIENCE
from waiting import wait_until

Db = psycopg.Connection[Any]

TABLES = ("agent", "command", "turn", "event", "outbox", "deferred_stop")
STORE = "select number from holdfast.store_event('default', 's1', 'Stop', '{}', null, null, %s, false)"


def sessions(db: Db) -> list[str]:
    return [session for (session,) in db.execute("select session_id from holdfast.agent order by session_id")]


def make_old(db: Db, *names: str) -> None:
    db.execute(
        "update holdfast.agent set last_seen_at = now() - interval '91 days' where session_id = any (%s)",
        (list(names),),
    )


async def a_story(session: str, staff: Crew) -> None:
    for each in (
        event("UserPromptSubmit", session, prompt="do it"),
        event("PostToolUse", session, tool_name="Bash", tool_use_id="t1"),
        event("Stop", session),  # deferred: it has no last words
        event("SessionEnd", session),
    ):
        await staff.send(each)


def test_old_agents_are_forgotten_with_all_that_is_theirs_and_others_are_not(
    url: str, db: Db, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "AT_ONCE", 2)

    async def main() -> None:
        async with crew(url, tells=Kind) as staff:
            for session in ("old1", "old2", "old3", "new"):
                await a_story(session, staff)
            db.execute("update holdfast.outbox set status = 'done', settled_at = now()")
            assert all(db.execute(f"select 1 from holdfast.{table}").fetchone() for table in TABLES)
            make_old(db, "old1", "old2", "old3")
            await Retention(staff.database, days=0).look()
            assert len(sessions(db)) == 4, "0 is for ever"
            await Retention(staff.database, days=92).look()
            assert len(sessions(db)) == 4
            await Retention(staff.database, days=90).look()

    asyncio.run(main())
    assert sessions(db) == ["new"]
    for table in TABLES[1:]:
        strays = f"select 1 from holdfast.{table} t left join holdfast.agent a on a.id = t.agent_id where a.id is null"
        assert db.execute(strays).fetchone() is None
        assert db.execute(f"select 1 from holdfast.{table}").fetchone() is not None, "the other's is left"


def test_what_is_left_to_do_keeps_an_agent(url: str, db: Db) -> None:
    async def main() -> None:
        async with crew(url, tells=Kind) as staff:
            await staff.send(event("UserPromptSubmit", "told", prompt="x"))
            await staff.send(event("SessionEnd", "told"))  # its message waits in the outbox
            await staff.store(event("UserPromptSubmit", "pending", prompt="x"))
            make_old(db, "told", "pending")
            await Retention(staff.database, days=90).look()

    asyncio.run(main())
    assert sessions(db) == ["pending", "told"]


@pytest.mark.parametrize("store_first", [True, False])
def test_an_event_that_comes_at_that_moment_finds_a_new_agent_or_keeps_the_old_one(
    url: str, db: Db, store_first: bool
) -> None:
    db.execute("select holdfast.store_event('default', 's1', 'Note', '{}', null, null, 'a', false)")
    db.execute("update holdfast.event set status = 'done', processed_at = now()")
    forget = "select holdfast.forget_agents(0, 10)"
    with (
        psycopg.connect(url, autocommit=True) as storing,
        psycopg.connect(url) as forgetting,
        ThreadPoolExecutor(1) as threads,
    ):
        if store_first:
            with storing.transaction():
                stored = storing.execute(STORE, (b"b",)).fetchone()
                assert forgetting.execute(forget).fetchone() == (0,)
        else:
            assert forgetting.execute(forget).fetchone() == (1,)
            later = threads.submit(lambda: storing.execute(STORE, (b"b",)).fetchone())
            waits = "select 1 from pg_stat_activity where pid = %s and wait_event_type = 'Lock'"
            wait_until(lambda: db.execute(waits, (storing.info.backend_pid,)).fetchone(), "it does not wait")
            forgetting.commit()
            stored = later.result(PATIENCE)
    assert stored == (2 if store_first else 1,)
    numbers = db.execute("select number from holdfast.event e join holdfast.agent a on a.id = agent_id order by number")
    assert numbers.fetchall() == ([(1,), (2,)] if store_first else [(1,)])


def test_the_drainer_sees_to_it(url: str, db: Db, tmp_path: Path) -> None:
    async def main() -> None:
        async with crew(url, transcripts=tmp_path) as staff:
            await a_story("old", staff)
            make_old(db, "old")
            staff.drainer._retention = Retention(staff.database, days=90)
            staff.drainer.start()
            async with asyncio.timeout(20):
                while sessions(db):  # noqa: ASYNC110
                    await asyncio.sleep(0.02)

    asyncio.run(main())
