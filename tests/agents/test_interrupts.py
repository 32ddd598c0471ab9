"""An interrupt is in the transcript only. It is found there, once, and ends the command that it was meant for."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import psycopg
import pytest
from crew import GOLDEN, Crew, crew, event
from sqlalchemy.exc import DBAPIError

Db = psycopg.Connection[Any]

LINES = (GOLDEN / "interrupted-transcript.jsonl").read_text().splitlines()
"""As a real client wrote it: the prompt, what the agent had said so far, the interrupt."""
PROMPT_ID = json.loads(LINES[-1])["promptId"]


@pytest.fixture
def transcript(tmp_path: Path) -> Path:
    path = tmp_path / "projects" / "t.jsonl"
    path.parent.mkdir()
    return path


def prompt(transcript: Path, prompt_id: str = PROMPT_ID, said: str = "count") -> dict[str, Any]:
    return event("UserPromptSubmit", prompt=said, prompt_id=prompt_id, transcript_path=str(transcript))


def append(transcript: Path, *lines: str) -> None:
    with open(transcript, "a") as file:
        file.writelines(f"{line}\n" for line in lines)


def commands(db: Db) -> list[str]:
    return [state for (state,) in db.execute("select state from holdfast.command order by id")]


def effects(db: Db) -> list[str]:
    return [effect for (effect,) in db.execute("select effect from holdfast.event order by number")]


async def work_off_what_was_found(staff: Crew) -> int:
    found = await staff.interrupts.look()
    for agent_id in found:
        assert await staff.processor.work_off(agent_id, wait=15)
    return len(found)


def test_an_interrupt_in_the_transcript_ends_the_command(url: str, db: Db, transcript: Path) -> None:
    async def tell() -> None:
        async with crew(url, transcript.parent) as staff:
            await staff.send(prompt(transcript))
            assert await work_off_what_was_found(staff) == 0  # no transcript yet
            append(transcript, *LINES[:-1])
            assert await work_off_what_was_found(staff) == 0
            append(transcript, LINES[-1], json.dumps({"type": "file-history-snapshot"}), "{torn")
            assert await work_off_what_was_found(staff) == 1

    asyncio.run(tell())
    assert commands(db) == ["COMPLETE"]
    assert effects(db) == ["opened", "interrupted"]
    last = db.execute("select actor, intent, text from holdfast.turn order by number desc limit 1").fetchone()
    assert last == ("AGENT", "END_OF_COMMAND", "[Request interrupted by user]")


def test_the_drainer_looks_by_itself(url: str, db: Db, transcript: Path) -> None:
    transcript.write_text("\n".join(LINES))

    async def tell() -> None:
        async with crew(url, transcript.parent) as staff:
            await staff.send(prompt(transcript))
            staff.drainer.start()
            async with asyncio.timeout(20):
                while commands(db) != ["COMPLETE"]:  # noqa: ASYNC110  the database tells nobody
                    await asyncio.sleep(0.02)

    asyncio.run(tell())


def test_an_interrupt_that_could_not_be_stored_is_found_again(url: str, db: Db, transcript: Path) -> None:
    transcript.write_text("\n".join(LINES))
    db.execute(
        "create function refuse() returns trigger language plpgsql as $$ begin raise exception 'not now'; end $$;"
        "create trigger refuse before insert on holdfast.event for each row"
        " when (new.name = 'UserInterrupt') execute function refuse()"
    )

    async def tell() -> None:
        async with crew(url, transcript.parent) as staff:
            await staff.send(prompt(transcript))
            with pytest.raises(DBAPIError, match="not now"):
                await staff.interrupts.look()
            db.execute("drop trigger refuse on holdfast.event")
            assert await work_off_what_was_found(staff) == 1

    asyncio.run(tell())
    assert commands(db) == ["COMPLETE"]


def test_two_processes_that_find_it_tell_it_once(url: str, db: Db, transcript: Path) -> None:
    transcript.write_text("\n".join(LINES))

    async def tell() -> None:
        async with crew(url, transcript.parent) as one, crew(url, transcript.parent) as other:
            await one.send(prompt(transcript))
            found = await asyncio.gather(one.interrupts.look(), other.interrupts.look())
            assert sorted(map(len, found)) == [0, 1]

    asyncio.run(tell())


def test_the_next_command_is_not_ended_by_the_interrupt_of_the_one_before(url: str, db: Db, transcript: Path) -> None:
    """The transcript is written behind the hooks: the new prompt may not be in it yet. Found by a new process, too."""
    transcript.write_text("\n".join(LINES))

    async def tell() -> None:
        async with crew(url, transcript.parent) as staff:
            await staff.send(prompt(transcript, prompt_id="another"))
            await work_off_what_was_found(staff)

    asyncio.run(tell())
    assert commands(db) == ["COMMANDED"]
    assert effects(db)[-1] == "kept: of an earlier command"


def test_an_interrupt_amid_the_work_on_an_answer_ends_it(url: str, db: Db, transcript: Path) -> None:
    """The command was opened by another prompt; the one that was interrupted answered its question."""
    transcript.write_text("\n".join(LINES))

    async def tell() -> None:
        async with crew(url, transcript.parent) as staff:
            await staff.send(prompt(transcript, prompt_id="first"))
            await staff.send(event("Stop", last_assistant_message="How far?", prompt_id="first"))
            await staff.send(prompt(transcript, said="to ten"))
            await work_off_what_was_found(staff)

    asyncio.run(tell())
    assert effects(db) == ["opened", "asked", "answered", "interrupted"]
    assert commands(db) == ["COMPLETE"]


@pytest.mark.parametrize(
    "after",
    [
        {"type": "assistant", "message": {"content": [{"type": "text", "text": "on it"}]}},
        {"type": "user", "message": {"content": "go on"}},
    ],
)
def test_an_interrupt_after_which_something_was_said_is_over(
    url: str, db: Db, transcript: Path, after: dict[str, Any]
) -> None:
    transcript.write_text("\n".join([*LINES, json.dumps(after)]))

    async def tell() -> None:
        async with crew(url, transcript.parent) as staff:
            await staff.send(prompt(transcript))
            assert await work_off_what_was_found(staff) == 0

    asyncio.run(tell())
    assert commands(db) == ["COMMANDED"]


def test_a_transcript_that_has_not_changed_is_not_read_again(
    url: str, transcript: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    transcript.write_text("\n".join(LINES[:-1]))
    reads = []
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda *arguments: reads.append(1) or pread(*arguments))

    async def tell() -> None:
        async with crew(url, transcript.parent) as staff:
            await staff.send(prompt(transcript))
            for _ in range(3):
                await staff.interrupts.look()

    asyncio.run(tell())
    assert len(reads) == 1


def test_a_transcript_elsewhere_is_left_alone(url: str, db: Db, transcript: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside.jsonl"
    outside.write_text("\n".join(LINES))
    (transcript.parent / "link.jsonl").symlink_to(outside)

    async def tell() -> None:
        async with crew(url, transcript.parent) as staff:
            for number, path in enumerate((outside, transcript.parent / "link.jsonl")):
                await staff.send({**prompt(path), "session_id": f"s{number}"})
            assert await work_off_what_was_found(staff) == 0

    asyncio.run(tell())
    assert commands(db) == ["COMMANDED"] * 2
