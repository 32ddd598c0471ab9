"""The inbox is worked off in order, once, whoever does it and whatever fails."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from crew import GOLDEN, RECORDED, crew, event
from sqlalchemy import text

from holdfast import AsyncLocks, LockNamespace, NotAcquired
from holdfast.agents import effects, inbox
from holdfast.agents.ledger import Ledger
from holdfast.agents.tables import Event
from holdfast.agents.view import Position, View
from holdfast.testing import PATIENCE

Db = psycopg.Connection[Any]


async def until(db: Db, query: str, expected: Any) -> None:
    async with asyncio.timeout(PATIENCE):
        while (found := db.execute(query).fetchall()) != expected:
            assert found is not None
            await asyncio.sleep(0.01)


@contextmanager
def locked(db: Db, agent_id: int) -> Iterator[None]:
    """As if another process were at work on the agent."""
    key = (LockNamespace.AGENT, agent_id)
    db.execute("select pg_advisory_lock(%s::int, %s::int)", key)
    yield
    db.execute("select pg_advisory_unlock(%s::int, %s::int)", key)


def statuses(db: Db) -> list[tuple[int, str]]:
    return db.execute("select number, status from holdfast.event order by number").fetchall()


def test_whoever_has_the_lock_works_off_what_came_before_and_stops_at_its_own(url: str, db: Db) -> None:
    async def main() -> None:
        async with crew(url) as staff:
            one, two, three = [await staff.store(event("Note", n=n)) for n in range(3)]
            assert await staff.processor.work_off(two.agent_id, up_to=two.number, wait=5)
            assert statuses(db) == [(1, "done"), (2, "done"), (3, "pending")]
            assert await staff.processor.work_off(one.agent_id, up_to=one.number, wait=5)  # done already: just answers
            assert statuses(db)[2] == (3, "pending")
            assert await staff.processor.work_off(three.agent_id, up_to=three.number, wait=5)

    asyncio.run(main())
    in_order = db.execute("select number from holdfast.event order by processed_at").fetchall()
    assert in_order == [(1,), (2,), (3,)]


def test_many_at_once_for_one_agent_through_two_crews_are_done_in_order(url: str, db: Db) -> None:
    async def main() -> None:
        async with crew(url) as one, crew(url) as other:
            await asyncio.gather(*((one, other)[n % 2].send(event("Note", n=n)) for n in range(60)))

    asyncio.run(main())
    numbers = [n for (n,) in db.execute("select number from holdfast.event order by processed_at")]
    assert numbers == list(range(1, 61))


def test_an_agent_that_is_locked_is_waited_for_and_its_inbox_stays(url: str, db: Db) -> None:
    async def main() -> None:
        async with crew(url) as staff:
            stored = await staff.store(event("Note"))
            with locked(db, stored.agent_id):
                with pytest.raises(NotAcquired):
                    await staff.processor.work_off(stored.agent_id, up_to=1, wait=0.1)
                assert statuses(db) == [(1, "pending")]
                await staff.store(event("Note", another=1))  # storing takes no such lock
                assert len(statuses(db)) == 2
            assert await staff.processor.work_off(stored.agent_id, wait=5)

    asyncio.run(main())
    assert [status for _, status in statuses(db)] == ["done", "done"]


@pytest.fixture
def poison(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """An effect that writes and then fails, as an unforeseen payload might make it; returns how often it ran."""
    ran: list[int] = []

    async def fails(ledger: Ledger, event: Event, payload: dict[str, Any]) -> str:
        ran.append(event.number)
        ledger.agent.model = "half done"
        raise ZeroDivisionError("of its own")

    monkeypatch.setattr(effects, "EFFECTS", {**effects.EFFECTS, "Poison": fails})
    return ran


def test_an_event_that_fails_five_times_is_set_aside_and_the_next_go_on(url: str, db: Db, poison: list[int]) -> None:
    async def main() -> None:
        async with crew(url) as staff:
            poisoned = await staff.store(event("Poison"))
            await staff.store(event("Note"))
            assert not await staff.processor.work_off(poisoned.agent_id, wait=5)
            assert statuses(db) == [(1, "pending"), (2, "pending")]  # the next one waits its turn
            staff.drainer.start()
            await until(db, "select status from holdfast.event order by number", [("set_aside",), ("done",)])

    asyncio.run(main())
    assert poison == [1] * 5
    row = db.execute("select failures, error from holdfast.event where number = 1").fetchone()
    assert row == (5, "ZeroDivisionError: of its own")
    assert db.execute("select model from holdfast.agent").fetchone() == (None,)  # rolled back, each time


def test_trouble_of_the_database_is_not_counted_as_the_events_own(url: str, db: Db, monkeypatch: Any) -> None:
    async def dies(ledger: Ledger, event: Event, payload: dict[str, Any]) -> str:
        (backend,) = (await ledger._db.execute(text("select pg_backend_pid()"))).one()
        db.execute("select pg_terminate_backend(%s)", (backend,))
        await ledger._db.execute(text("select 1"))
        return "not reached"

    monkeypatch.setattr(effects, "EFFECTS", {**effects.EFFECTS, "Dies": dies})

    async def main() -> None:
        async with crew(url) as staff:
            stored = await staff.store(event("Dies"))
            for _ in range(6):
                with pytest.raises(Exception, match="the database cannot be used"):
                    await staff.processor.work_off(stored.agent_id, wait=5)
            assert db.execute("select status, failures from holdfast.event").fetchone() == ("pending", 0)
            monkeypatch.undo()
            assert await staff.processor.work_off(stored.agent_id, wait=5)

    asyncio.run(main())


def test_a_drainer_finds_at_its_start_what_a_killed_process_has_left(url: str, db: Db) -> None:
    async def main() -> None:
        async with crew(url) as killed:
            for report in RECORDED:
                await killed.store(report)
        async with crew(url) as staff:
            staff.drainer.start()
            await until(db, "select count(*) from holdfast.event where status = 'pending'", [(0,)])

    asyncio.run(main())
    assert db.execute("select state from holdfast.command").fetchall() == [("COMPLETE",)]


def test_a_drainer_finds_by_its_age_what_a_process_killed_meanwhile_has_left(url: str, db: Db) -> None:
    async def main() -> None:
        async with crew(url) as staff, crew(url) as killed:
            staff.drainer.start()
            await asyncio.sleep(0)
            await killed.store(event("Note"))
            await until(db, "select count(*) from holdfast.event where status = 'pending'", [(0,)])

    asyncio.run(main())


def test_a_drainer_is_called_by_notify(url: str, db: Db) -> None:
    async def main() -> None:
        async with crew(url) as staff, crew(url) as killed:
            staff.drainer._interval = 1000.0
            staff.drainer.start()
            here = "query = 'listen holdfast_inbox' and datname = current_database()"
            await until(db, f"select 1 from pg_stat_activity where {here}", [(1,)])
            stored = await killed.store(event("Note"))
            db.execute("select pg_notify('holdfast_inbox', %s)", (str(stored.agent_id),))
            await until(db, "select count(*) from holdfast.event where status = 'pending'", [(0,)])

    asyncio.run(main())


def test_being_called_while_at_it_means_once_more(url: str, db: Db, monkeypatch: pytest.MonkeyPatch) -> None:
    """What comes when a drainer has looked and not ended yet is not left lying."""

    async def main() -> None:
        async with crew(url) as staff:
            work_off, looked, may_end = staff.processor.work_off, asyncio.Event(), asyncio.Event()

            async def ends_slowly(*arguments: Any, **options: Any) -> bool:
                outcome = await work_off(*arguments, **options)
                looked.set()
                await may_end.wait()
                return outcome

            monkeypatch.setattr(staff.processor, "work_off", ends_slowly)
            staff.drainer._interval = 1000.0
            staff.drainer.start()
            stored = await staff.store(event("Note"))
            staff.drainer.call(stored.agent_id)
            await looked.wait()
            for n in range(3):
                await staff.store(event("Note", n=n))
                staff.drainer.call(stored.agent_id)
            assert len(staff.drainer._at_work) == 1
            may_end.set()
            await until(db, "select count(*) from holdfast.event where status = 'pending'", [(0,)])

    asyncio.run(main())


def without_last_words(report: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return {name: value for name, value in report.items() if name != "last_assistant_message"} | changes


def test_a_stop_without_last_words_waits_for_the_transcript(url: str, db: Db, tmp_path: Path) -> None:
    whole = (GOLDEN / "transcript.jsonl").read_bytes()
    torn = whole.index(b"All done, hello.")
    path = tmp_path / "projects" / "shop" / "session.jsonl"
    path.parent.mkdir(parents=True)
    path.write_bytes(whole[:torn])

    async def main() -> None:
        async with crew(url, tmp_path / "projects") as staff:
            for report in RECORDED[:5]:
                await staff.send(without_last_words(report, transcript_path=str(path)))
            staff.drainer.start()
            await until(db, "select tries > 1 from holdfast.deferred_stop", [(True,)])
            assert db.execute("select state from holdfast.command").fetchall() == [("PROCESSING",)]
            with open(path, "ab") as file:  # as a client does: nobody ever sees less than before
                file.write(whole[torn:])
            await until(db, "select state from holdfast.command", [("COMPLETE",)])

    asyncio.run(main())
    assert db.execute("select text from holdfast.turn order by number desc").fetchone() == ("All done, hello.",)
    assert db.execute("select count(*) from holdfast.deferred_stop").fetchone() == (0,)
    assert db.execute("select effect from holdfast.event where name = 'Stop'").fetchone() == (
        "deferred, then completed",
    )
    known = db.execute("select model, client_version, git_branch from holdfast.agent").fetchone()
    assert known == ("claude-opus-4-8", "2.1.197", "HEAD"), "what else the transcript told"


def test_a_deferred_stop_survives_a_restart_and_finds_what_session_end_has_completed(
    url: str, db: Db, tmp_path: Path
) -> None:
    async def main() -> None:
        async with crew(url, tmp_path) as first:
            for report in RECORDED[:5]:
                await first.send(without_last_words(report))
        async with crew(url, tmp_path) as second:
            await second.send(RECORDED[5])
            assert db.execute("select count(*) from holdfast.deferred_stop").fetchone() == (1,)
            db.execute("update holdfast.deferred_stop set tries = 100, due_at = now()")
            second.drainer.start()
            await until(db, "select count(*) from holdfast.deferred_stop", [(0,)])

    asyncio.run(main())
    turns = db.execute("select intent from holdfast.turn order by number").fetchall()
    assert turns == [("COMMAND",), ("PROGRESS",)]  # nothing was added after the end
    assert db.execute("select effect from holdfast.event where name = 'Stop'").fetchone() == ("deferred",)


async def effects_told(view: View, after: Position) -> list[str | None]:
    return [change["effect"] for _, change in await view.changes("default", after)]


def test_a_transcript_that_never_comes_does_not_leave_the_command_open(url: str, db: Db, tmp_path: Path) -> None:
    async def main() -> None:
        async with crew(url, tmp_path) as staff:
            for report in RECORDED[:5]:
                await staff.send(without_last_words(report))
            db.execute("update holdfast.deferred_stop set tries = 7, due_at = now()")
            view = View(staff.database)
            before = await view.now()
            staff.drainer.start()
            await until(db, "select state from holdfast.command", [("COMPLETE",)])
            async with asyncio.timeout(PATIENCE):  # it is told when no older transaction is under way, whosever
                while "deferred, then completed" not in await effects_told(view, before):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)

    asyncio.run(main())


def test_a_holder_that_has_lost_its_lock_and_does_not_know_does_no_event_twice(
    url: str, db: Db, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two that both believe to hold the agent's lock. Its row keeps them apart."""

    async def count(ledger: Ledger, event: Event, payload: dict[str, Any]) -> str:
        before = int(ledger.agent.model or 0)
        await ledger.open_command()  # a round trip, for the other to come in between
        ledger.agent.model = str(before + 1)
        return "counted"

    monkeypatch.setattr(effects, "EFFECTS", {**effects.EFFECTS, "Count": count})

    async def main() -> None:
        async with crew(url) as one, crew(url) as other:
            for number, staff in enumerate((one, other)):
                staff.processor._locks = AsyncLocks.from_url(f"memory://lost-{number}")
            for n in range(40):
                stored = await one.store(event("Count", n=n))
            await asyncio.gather(*(staff.processor.work_off(stored.agent_id, wait=5) for staff in (one, other)))

    ran: list[int] = []
    mark_done = inbox.mark_done
    monkeypatch.setattr(inbox, "mark_done", lambda event, effect: (ran.append(event.number), mark_done(event, effect)))
    asyncio.run(main())
    assert ran == list(range(1, 41)), "each once, and in order"
    assert db.execute("select model from holdfast.agent").fetchone() == ("40",)


def test_a_deferred_stop_of_a_locked_agent_holds_up_nobody_and_is_done_later(url: str, db: Db, tmp_path: Path) -> None:
    async def main() -> None:
        async with crew(url, tmp_path) as staff, crew(url) as killed:
            for report in RECORDED[:5]:
                stored = await staff.send(without_last_words(report))
            db.execute("update holdfast.deferred_stop set tries = 99, due_at = now()")
            with locked(db, stored.agent_id):
                staff.drainer.start()
                await killed.store(event("Note", "another"))
                await until(db, "select count(*) from holdfast.event where status = 'pending'", [(0,)])
                await until(db, "select tries, due_at > now() from holdfast.deferred_stop", [(100, True)])
            await until(db, "select state from holdfast.command", [("COMPLETE",)])

    asyncio.run(main())
