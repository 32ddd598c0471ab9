"""What is told: written with the transaction that it is about, delivered after it, in order, until it was taken."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
import pytest
from crew import Crew, crew, event
from sqlalchemy import TextClause, text
from test_processing import until

from holdfast.agents import effects, outbox
from holdfast.agents.outbox import Kind, Message, Outbox, Undelivered
from holdfast.testing import PATIENCE

Db = psycopg.Connection[Any]

KINDS = "select kind from holdfast.outbox order by id"
STATUSES = "select status from holdfast.outbox order by id"


class Receiver:
    """Takes messages; fails those that it is told to."""

    def __init__(self) -> None:
        self.came: list[Message] = []
        self.fails: set[str] = set()
        self.answers = asyncio.Event()
        self.answers.set()

    async def take(self, message: Message) -> None:
        self.came.append(message)
        await self.answers.wait()
        if message.payload["session"] in self.fails:
            raise Undelivered("status 500")

    @property
    def texts(self) -> list[str]:
        return [message.payload["text"] for message in self.came]


@asynccontextmanager
async def delivering(staff: Crew, receiver: Receiver, *, interval: float = 0.05) -> AsyncIterator[Outbox]:
    worker = Outbox(staff.database, receiver.take, interval=interval)
    worker.start()
    try:
        yield worker
    finally:
        receiver.answers.set()
        await worker.stop()


async def complete(staff: Crew, text: str, session: str = "s1") -> None:
    await staff.send(event("UserPromptSubmit", session, prompt=f"do {text}"))
    await staff.send(event("Stop", session, last_assistant_message=text))


def test_what_the_agent_brings_about_is_told_and_what_the_user_does_is_not(url: str, db: Db) -> None:
    async def main() -> None:
        async with crew(url, tells=Kind) as staff:
            await staff.send(event("UserPromptSubmit", prompt="one", prompt_id="p1"))
            await staff.send(event("PreToolUse", tool_name="Bash", tool_use_id="t1"))
            await staff.send(event("PermissionRequest", tool_name="Bash"))
            await staff.send(event("Notification", notification_type="permission_prompt", message="may I?"))
            await staff.send(event("PostToolUse", tool_name="Bash", tool_use_id="t1"))
            await staff.send(event("Stop", last_assistant_message="Shall I go on?"))
            await staff.send(event("UserPromptSubmit", prompt="two", prompt_id="p2"))  # ends the first one
            await staff.send(event("UserPromptSubmit", prompt="[Request interrupted by user]", prompt_id="p3"))
            await staff.send(event("UserPromptSubmit", prompt="three", prompt_id="p4"))
            await staff.send(event("Stop", last_assistant_message="x" * 1000))
            await staff.send(event("UserPromptSubmit", prompt="four", prompt_id="p5"))
            await staff.send(event("StopFailure", error="overloaded"))
            await staff.send(event("UserPromptSubmit", prompt="five", prompt_id="p6"))
            await staff.send(event("SessionEnd", reason="logout"))

    asyncio.run(main())
    told = db.execute("select kind, payload from holdfast.outbox order by id").fetchall()
    assert [(kind, payload["text"]) for kind, payload in told] == [
        ("awaiting_input", "permission to use Bash"),
        ("awaiting_input", "Shall I go on?"),
        ("complete", "x" * 299 + "…"),
        ("complete", "overloaded"),
        ("complete", None),
        ("ended", "logout"),
    ]
    (agent,) = db.execute("select id from holdfast.agent").fetchone() or ()
    first = told[0][1]
    assert first.keys() == {"kind", "tenant", "agent", "session", "project", "command", "text", "event", "at"}
    assert (first["tenant"], first["agent"], first["session"]) == ("default", agent, "s1")
    assert (first["project"], first["command"]["state"], first["event"]) == ("/home/dev/shop", "AWAITING_INPUT", 3)


@pytest.mark.parametrize(("wanted", "told"), [((), []), ((Kind.ENDED,), ["ended"]), ((Kind.COMPLETE,), ["complete"])])
def test_only_what_is_wanted_is_written(url: str, db: Db, wanted: tuple[Kind, ...], told: list[str]) -> None:
    async def main() -> None:
        async with crew(url, tells=wanted) as staff:
            await staff.send(event("UserPromptSubmit", prompt="x"))
            await staff.send(event("PermissionRequest", tool_name="Bash"))
            await staff.send(event("SessionEnd"))

    asyncio.run(main())
    assert [kind for (kind,) in db.execute(KINDS)] == told


def test_what_is_rolled_back_is_not_told(url: str, db: Db, monkeypatch: pytest.MonkeyPatch) -> None:
    async def stop_and_fail(*given: Any) -> str:
        await effects._stop(*given)
        raise ValueError("after all was written")

    monkeypatch.setattr(effects, "EFFECTS", effects.EFFECTS | {"Stop": stop_and_fail})

    async def main() -> None:
        async with crew(url, tells=Kind) as staff:
            await staff.send(event("UserPromptSubmit", prompt="x"))
            stored = await staff.store(event("Stop", last_assistant_message="Done."))
            assert not await staff.processor.work_off(stored.agent_id, up_to=stored.number, wait=5)

    asyncio.run(main())
    assert db.execute("select failures from holdfast.event where name = 'Stop'").fetchall() == [(1,)]
    assert db.execute(KINDS).fetchall() == []


def test_a_deferred_stop_is_told_when_it_is_concluded(url: str, db: Db, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.agents.deferred.MOST_TRIES", 1)

    async def main() -> None:
        async with crew(url, tells=Kind) as staff:
            await staff.send(event("UserPromptSubmit", prompt="x"))
            await staff.send(event("Stop"))
            assert db.execute(KINDS).fetchall() == []
            await staff.deferred.work_off()

    asyncio.run(main())
    assert db.execute(KINDS).fetchall() == [("complete",)]


def test_messages_of_one_agent_go_out_in_order_and_others_do_not_wait_for_them(url: str, db: Db) -> None:
    async def main() -> None:
        receiver = Receiver()
        receiver.fails.add("s1")
        async with crew(url, tells=Kind) as staff:
            for n in range(3):
                await complete(staff, f"first {n}")
                await complete(staff, f"second {n}", "s2")
            async with delivering(staff, receiver):
                await until(db, f"{STATUSES} offset 5", [("done",)])
                assert [text for text in receiver.texts if "second" in text] == ["second 0", "second 1", "second 2"]
                assert {text for text in receiver.texts if "first" in text} == {"first 0"}
                receiver.fails.clear()
                await until(db, STATUSES, [("done",)] * 6)
        taken = [text for text in receiver.texts if text.startswith("first")]
        assert [text for n, text in enumerate(taken) if text not in taken[:n]] == ["first 0", "first 1", "first 2"]

    asyncio.run(main())


def test_who_has_taken_a_message_has_it_for_its_lease_then_another_gets_it_with_the_same_key(url: str, db: Db) -> None:
    async def main() -> None:
        stuck, other = Receiver(), Receiver()
        stuck.answers.clear()
        async with crew(url, tells=Kind) as staff, crew(url) as others:
            await complete(staff, "told")
            async with delivering(staff, stuck, interval=600) as worker:  # it does not look again by itself
                await until(db, "select attempts from holdfast.outbox", [(1,)])
                async with delivering(others, other) as second:
                    for _ in range(5):  # it looks, and takes nothing
                        second.look()
                        await asyncio.sleep(0.02)
                    assert other.came == []
                    db.execute("update holdfast.outbox set due_at = now()")  # its lease has ended
                    await until(db, STATUSES, [("done",)])
                assert worker.alive
        assert [message.key for message in stuck.came] == [message.key for message in other.came]
        assert [message.attempt for message in stuck.came + other.came] == [1, 2]

    asyncio.run(main())


def test_a_failure_that_is_told_late_does_not_touch_the_next_attempt(url: str, db: Db) -> None:
    async def main() -> None:
        late = Receiver()
        late.answers.clear()
        late.fails.add("s1")
        async with crew(url, tells=Kind) as staff:
            await complete(staff, "told")
            async with delivering(staff, late):
                await until(db, "select attempts from holdfast.outbox", [(1,)])
                taken = "update holdfast.outbox set attempts = 2, due_at = now() + interval '1 h' returning due_at"
                (until_then,) = db.execute(taken).fetchone() or ()
        assert db.execute("select due_at, error from holdfast.outbox").fetchall() == [(until_then, None)]

    asyncio.run(main())


def test_after_its_last_attempt_a_message_is_set_aside_and_the_next_goes_on(
    url: str, db: Db, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "LONGEST_PAUSE", 0.0)

    async def main() -> None:
        receiver = Receiver()
        receiver.fails.add("s1")
        async with crew(url, tells=Kind) as staff:
            await complete(staff, "lost")
            async with delivering(staff, receiver):
                await until(db, STATUSES, [("set_aside",)])
                receiver.fails.clear()
                await complete(staff, "next")
                await until(db, STATUSES, [("set_aside",), ("done",)])
        assert receiver.texts == ["lost"] * outbox.MOST_ATTEMPTS + ["next"]
        assert db.execute("select error from holdfast.outbox order by id").fetchall() == [("status 500",), (None,)]

    asyncio.run(main())


def test_a_message_that_nobody_lives_to_deliver_is_set_aside_too(url: str, db: Db) -> None:
    async def main() -> None:
        async with crew(url, tells=Kind) as staff:
            await complete(staff, "deadly")
            db.execute("update holdfast.outbox set attempts = %s", (outbox.MOST_ATTEMPTS,))
            async with delivering(staff, receiver := Receiver()):
                await until(db, STATUSES, [("set_aside",)])
            assert receiver.came == []

    asyncio.run(main())


def test_pauses_grow_between_attempts(url: str, db: Db) -> None:
    pauses = []

    async def main() -> None:
        receiver = Receiver()
        receiver.fails.add("s1")
        async with crew(url, tells=Kind) as staff:
            await complete(staff, "told")
            worker = Outbox(staff.database, receiver.take)  # not started: it takes what is due when we say so
            for _ in range(1, outbox.MOST_ATTEMPTS):
                db.execute("update holdfast.outbox set due_at = now()")
                await worker._take_what_is_due()
                await asyncio.gather(*worker._under_way)
                pause = "select extract(epoch from due_at - clock_timestamp())::float8 from holdfast.outbox"
                pauses.append((db.execute(pause).fetchone() or (0,))[0])

    asyncio.run(main())
    for pause, expected in zip(pauses, (1, 4, 16, 64, 256, 900, 900), strict=True):
        assert expected - PATIENCE < pause <= expected


def test_what_waits_behind_a_dead_receiver_is_not_looked_at(url: str, db: Db) -> None:
    """Every process looks every other second, and at each new message: by then there may be very many."""
    agents, each = 3, 5000
    db.execute(
        "insert into holdfast.agent (tenant, session_id) select 'default', n::text from generate_series(1, %s) n",
        (agents,),
    )
    db.execute(
        "insert into holdfast.outbox (agent_id, kind, source, payload) "
        "select id, 'complete', n::text, '{}' from holdfast.agent, generate_series(1, %s) n",
        (each,),
    )
    db.execute("analyze holdfast.outbox")
    bounds = {"most_attempts": outbox.MOST_ATTEMPTS, "lease": outbox.LEASE, "most": outbox.MOST_AT_ONCE}

    async def plan_of(statement: TextClause) -> dict[str, Any]:
        async with crew(url) as staff, staff.database.statement() as connection:
            explained = await connection.execute(text(f"explain (analyze, format json) {statement.text}"), bounds)
            plan: dict[str, Any] = explained.scalar_one()[0]["Plan"]
            return plan

    for statement in (outbox._TAKE, outbox._GIVE_UP):
        rows = [node["Actual Rows"] * node["Actual Loops"] for node in nodes(asyncio.run(plan_of(statement)))]
        assert max(rows) <= 2 * agents


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for below in plan.get("Plans", []):
        yield from nodes(below)
