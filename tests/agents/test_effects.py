"""What events do to an agent's rows, one after the other, on a real database."""

import asyncio
from typing import Any

import psycopg
import pytest
from crew import RECORDED, crew, event

Db = psycopg.Connection[Any]


def prompt(text: str = "do it", **fields: Any) -> dict[str, Any]:
    return event("UserPromptSubmit", prompt=text, **fields)


def play(url: str, *story: dict[str, Any], late: bool = False) -> None:
    async def tell() -> None:
        async with crew(url) as staff:
            for report in story:
                await staff.send(report, late=late)

    asyncio.run(tell())


def commands(db: Db) -> list[str]:
    return [state for (state,) in db.execute("select state from holdfast.command order by id")]


def turns(db: Db) -> list[tuple[str, str, str | None]]:
    return db.execute("select actor, intent, text from holdfast.turn order by number").fetchall()


def effects(db: Db) -> list[str]:
    return [effect for (effect,) in db.execute("select effect from holdfast.event order by number")]


def test_the_recorded_session_ends_in_the_right_rows(url: str, db: Db) -> None:
    play(url, *RECORDED)
    assert effects(db) == ["registered", "opened", "at work", "progress", "completed", "ended"]
    assert commands(db) == ["COMPLETE"]
    assert turns(db) == [
        ("USER", "COMMAND", "say hi"),
        ("AGENT", "PROGRESS", None),
        ("AGENT", "COMPLETION", "All done, hello."),
    ]
    agent = db.execute(
        "select session_id, cwd, source, end_reason, ended_at is not null from holdfast.agent"
    ).fetchone()
    assert agent == (RECORDED[0]["session_id"], "/home/dev/shop", "startup", "other", True)
    assert db.execute("select tenant, path from holdfast.project").fetchall() == [("default", "/home/dev/shop")]
    assert db.execute("select prompt_id from holdfast.command").fetchone() == (RECORDED[1]["prompt_id"],)


def test_the_recorded_session_told_twice_has_one_effect(url: str, db: Db) -> None:
    play(url, *(report for report in RECORDED for _ in range(2)))
    assert len(effects(db)) == len(RECORDED)
    assert commands(db) == ["COMPLETE"]
    assert len(turns(db)) == 3


Story = list[dict[str, Any]]
STORIES: dict[str, tuple[Story, list[str], str]] = {
    "a question tool asks": (
        [prompt(), event("PreToolUse", tool_name="AskUserQuestion", tool_use_id="q")],
        ["AWAITING_INPUT"],
        "awaiting input",
    ),
    "its answer resumes": (
        [
            prompt(),
            event("PreToolUse", tool_name="AskUserQuestion", tool_use_id="q"),
            event("PostToolUse", tool_name="AskUserQuestion", tool_use_id="q"),
        ],
        ["PROCESSING"],
        "resumed",
    ),
    "a tool beside it does not": (
        [
            prompt(),
            event("PreToolUse", tool_name="AskUserQuestion", tool_use_id="q"),
            event("PostToolUse", tool_name="Bash", tool_use_id="b"),
        ],
        ["AWAITING_INPUT"],
        "kept: input is awaited",
    ),
    "a permission is asked for": (
        [prompt(), event("PermissionRequest", tool_name="Bash")],
        ["AWAITING_INPUT"],
        "awaiting input",
    ),
    "and its notification is no second question": (
        [
            prompt(),
            event("PermissionRequest", tool_name="Bash"),
            event("Notification", message="needs your permission", notification_type="permission_prompt"),
        ],
        ["AWAITING_INPUT"],
        "still awaiting input",
    ),
    "the tool ran: permission was given": (
        [
            prompt(),
            event("PermissionRequest", tool_name="Bash"),
            event("PostToolUse", tool_name="Bash", tool_use_id="b"),
        ],
        ["PROCESSING"],
        "resumed",
    ),
    "a notification that asks": (
        [prompt(), event("Notification", message="?", notification_type="idle_prompt")],
        ["AWAITING_INPUT"],
        "awaiting input",
    ),
    "a notification that does not": (
        [prompt(), event("Notification", message="!", notification_type="auth_success")],
        ["COMMANDED"],
        "kept: asks for nothing",
    ),
    "idle after the end": (
        [
            prompt(),
            event("Stop", last_assistant_message="Done."),
            event("Notification", notification_type="idle_prompt"),
        ],
        ["COMPLETE"],
        "kept: nothing is open",
    ),
    "a last word that asks": (
        [prompt(), event("Stop", last_assistant_message="Done.\n\nShall I commit?")],
        ["AWAITING_INPUT"],
        "asked",
    ),
    "what the user then says is the answer": (
        [prompt(prompt_id="1"), event("Stop", last_assistant_message="Commit?"), prompt("yes", prompt_id="2")],
        ["PROCESSING"],
        "answered",
    ),
    "a prompt instead of a permission is a new command": (
        [prompt(prompt_id="1"), event("PermissionRequest", tool_name="Bash"), prompt("rather this", prompt_id="2")],
        ["COMPLETE", "COMMANDED"],
        "opened",
    ),
    "a new prompt amid work breaks it off": (
        [
            prompt(prompt_id="1"),
            event("PreToolUse", tool_name="Bash", tool_use_id="b"),
            prompt("no, this", prompt_id="2"),
        ],
        ["COMPLETE", "COMMANDED"],
        "opened",
    ),
    "without ids it is added": (
        [prompt(), event("PreToolUse", tool_name="Bash", tool_use_id="b"), prompt("and this")],
        ["PROCESSING"],
        "added",
    ),
    "the same prompt within seconds": ([prompt(prompt_id="1"), prompt(prompt_id="2")], ["COMMANDED"], "repeated"),
    "an interrupt": ([prompt(), prompt("[Request interrupted by user for tool use]")], ["COMPLETE"], "interrupted"),
    "system text": ([prompt("<system-reminder>hi</system-reminder>")], [], "kept: not the user's words"),
    "work without a prompt": ([event("PreToolUse", tool_name="Bash", tool_use_id="b")], ["PROCESSING"], "at work"),
    "an end without a prompt": (
        [event("Stop", last_assistant_message="Done.", prompt_id="p")],
        ["COMPLETE"],
        "completed",
    ),
    "a second stop": (
        [
            prompt(prompt_id="1"),
            *(event("Stop", last_assistant_message=said, prompt_id="1") for said in ("Done.", "Really.")),
        ],
        ["COMPLETE"],
        "already complete",
    ),
    "the session ends amid work": ([prompt(), event("SessionEnd", reason="logout")], ["COMPLETE"], "ended"),
    "an unknown event": ([event("TeammateIdle", anything={"a": [1]})], [], "kept"),
    "a straggler after the end": (
        [prompt(), event("SessionEnd"), event("PostToolUse", tool_name="Bash", tool_use_id="b")],
        ["COMPLETE"],
        "kept: the agent has ended",
    ),
    "a subagent's tool counts for its session": (
        [prompt(), event("PostToolUse", tool_name="Bash", tool_use_id="b", agent_id="sub", agent_type="Explore")],
        ["PROCESSING"],
        "progress",
    ),
}


@pytest.mark.parametrize("story", STORIES.values(), ids=list(STORIES))
def test_a_story(url: str, db: Db, story: tuple[Story, list[str], str]) -> None:
    reports, states, last_effect = story
    play(url, *reports)
    assert commands(db) == states
    assert effects(db)[-1] == last_effect
    assert db.execute("select count(*) from holdfast.agent").fetchone() == (1,)


def ended(db: Db) -> bool:
    row = db.execute("select ended_at is not null from holdfast.agent").fetchone()
    assert row is not None
    return bool(row[0])


@pytest.mark.parametrize("report", [event("SessionStart", source="resume"), prompt()])
def test_a_session_that_is_taken_up_again_lives(url: str, db: Db, report: dict[str, Any]) -> None:
    play(url, event("SessionStart", source="startup"), event("SessionEnd"))
    assert ended(db)
    play(url, report)
    assert not ended(db)


@pytest.mark.parametrize("report", [event("SessionStart", source="startup", model="m"), prompt()])
def test_what_comes_late_from_a_spool_fills_gaps_and_revives_nobody(url: str, db: Db, report: dict[str, Any]) -> None:
    play(url, event("SessionEnd"))
    play(url, report, late=True)
    assert ended(db)
    assert db.execute("select model from holdfast.agent").fetchone() == (report.get("model"),)


def test_odd_but_legal_values_are_kept_and_harm_nobody(url: str, db: Db) -> None:
    odd: Story = [
        prompt("nul \0 and \ud800 alone"),
        event("PreToolUse", tool_name=["not", "a", "name"], tool_use_id="1"),
        event("PostToolUse", tool_name={"a": 1}, tool_use_id="2", tool_response="\0"),
        event("Notification", message=17, notification_type=["x"]),
        event("PermissionRequest"),
        event(
            "PreToolUse", tool_name="AskUserQuestion", tool_input={"questions": [1, {"question": 2}]}, tool_use_id="3"
        ),
        {"session_id": "s1", "hook_event_name": "SessionStart", "cwd": "/" + "x" * 4000},
    ]
    play(url, *odd)
    assert db.execute("select count(*) from holdfast.event where status <> 'done'").fetchone() == (0,)
    assert turns(db)[0][2] == "nul \ufffd and ? alone"


def test_one_can_see_since_when_it_works_or_waits(url: str, db: Db) -> None:
    """Not since its last step, nor since the client reminded somebody of it."""

    def changed() -> Any:
        return db.execute("select changed_at from holdfast.command").fetchone()

    play(url, prompt(), event("PreToolUse", tool_name="Bash", tool_use_id="b"))
    since = changed()
    play(url, event("PostToolUse", tool_name="Bash", tool_use_id="b"))
    assert changed() == since
    play(url, event("PermissionRequest", tool_name="Bash"))
    since, before = changed(), since
    assert since > before
    play(url, event("Notification", notification_type="permission_prompt"))
    assert changed() == since


def test_each_event_sees_what_the_one_before_has_done(url: str, db: Db) -> None:
    """A second process changes the rows between two events of the first; nothing is remembered."""

    async def tell() -> None:
        async with crew(url) as one, crew(url) as other:
            await one.send(prompt(prompt_id="1"))
            await other.send(event("Stop", last_assistant_message="Done.", prompt_id="1"))
            await one.send(event("PostToolUse", tool_name="Bash", tool_use_id="b"))

    asyncio.run(tell())
    assert commands(db) == ["COMPLETE", "PROCESSING"]


def test_the_same_prompt_is_judged_by_when_it_arrived_not_by_when_it_is_worked_off(url: str, db: Db) -> None:
    """Two that came minutes apart, while nobody worked them off, are two."""

    async def tell() -> None:
        async with crew(url) as staff:
            for prompt_id in "12":
                stored = await staff.store(prompt("go on", prompt_id=prompt_id))
            db.execute("update holdfast.event set received_at = received_at - interval '2 min' where number = 1")
            await staff.processor.work_off(stored.agent_id, wait=5)

    asyncio.run(tell())
    assert effects(db) == ["opened", "opened"]
