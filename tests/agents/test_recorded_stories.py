"""What a real client reported while it was used: calls allowed, refused, asked for at once; a service that failed."""

import asyncio
import json
from typing import Any

import psycopg
import pytest
from crew import GOLDEN, crew

Db = psycopg.Connection[Any]

STORIES: dict[str, list[dict[str, Any]]] = {}
for _line in (GOLDEN / "hook-stories.jsonl").read_text().splitlines():
    _told = json.loads(_line)
    STORIES.setdefault(_told["story"], []).append(_told["payload"])

# What each event comes to, and how the agent's commands stand after it.
EXPECTED = {
    "a call that was allowed fails, and the next one asks": [
        ("UserPromptSubmit", "opened", "COMMANDED"),
        ("PreToolUse", "at work", "PROCESSING"),
        ("PermissionRequest", "awaiting input", "AWAITING_INPUT"),
        ("PostToolUseFailure", "resumed", "PROCESSING"),
        ("PostToolBatch", "kept: no input is awaited", "PROCESSING"),
        ("PreToolUse", "at work", "PROCESSING"),
        ("PermissionRequest", "awaiting input", "AWAITING_INPUT"),
        ("Notification", "still awaiting input", "AWAITING_INPUT"),
    ],
    "a call is refused with words, and the next one asks": [
        ("UserPromptSubmit", "opened", "COMMANDED"),
        ("PreToolUse", "at work", "PROCESSING"),
        ("PermissionRequest", "awaiting input", "AWAITING_INPUT"),
        ("PostToolBatch", "resumed", "PROCESSING"),
        ("PreToolUse", "at work", "PROCESSING"),
        ("PermissionRequest", "awaiting input", "AWAITING_INPUT"),
    ],
    "two calls ask at once, and are allowed one after the other": [
        ("UserPromptSubmit", "opened", "COMMANDED"),
        ("PreToolUse", "at work", "PROCESSING"),
        ("PreToolUse", "at work", "PROCESSING"),
        ("PermissionRequest", "awaiting input", "AWAITING_INPUT"),
        ("PermissionRequest", "awaiting input", "AWAITING_INPUT"),
        ("PostToolUse", "kept: input is awaited", "AWAITING_INPUT"),
        ("PostToolUse", "resumed", "PROCESSING"),
        ("PostToolBatch", "kept: no input is awaited", "PROCESSING"),
        ("Stop", "completed", "COMPLETE"),
    ],
    "the service refuses": [
        ("UserPromptSubmit", "opened", "COMMANDED"),
        ("StopFailure", "failed", "COMPLETE"),
    ],
    "a question is asked and answered": [
        ("UserPromptSubmit", "opened", "COMMANDED"),
        ("PreToolUse", "awaiting input", "AWAITING_INPUT"),
        ("PermissionRequest", "still awaiting input", "AWAITING_INPUT"),
        ("PostToolUse", "resumed", "PROCESSING"),
        ("PostToolBatch", "kept: no input is awaited", "PROCESSING"),
        ("Stop", "completed", "COMPLETE"),
    ],
    "a subagent works": [
        ("SessionStart", "registered", None),
        ("UserPromptSubmit", "opened", "COMMANDED"),
        ("PreToolUse", "at work", "PROCESSING"),
        ("SubagentStart", "kept", "PROCESSING"),
        ("PreToolUse", "at work", "PROCESSING"),
        ("PostToolUse", "progress", "PROCESSING"),
        ("PostToolBatch", "kept: no input is awaited", "PROCESSING"),
        ("SubagentStop", "kept", "PROCESSING"),
        ("PostToolUse", "progress", "PROCESSING"),
        ("PostToolBatch", "kept: no input is awaited", "PROCESSING"),
        ("Stop", "completed", "COMPLETE"),
        ("SessionEnd", "ended", "COMPLETE"),
    ],
    "a background task ends later": [
        ("UserPromptSubmit", "opened", "COMMANDED"),
        ("PreToolUse", "at work", "PROCESSING"),
        ("PostToolUse", "progress", "PROCESSING"),
        ("PostToolBatch", "kept: no input is awaited", "PROCESSING"),
        ("Stop", "completed", "COMPLETE"),
        ("UserPromptSubmit", "kept: not the user's words", "COMPLETE"),
        ("Stop", "completed", "COMPLETE"),
    ],
    "a stop without last words": [
        ("SessionStart", "registered", None),
        ("UserPromptSubmit", "opened", "COMMANDED"),
        ("Stop", "deferred", "COMMANDED"),
        ("SessionEnd", "ended", "COMPLETE"),
    ],
    "the session is cleared": [
        ("SessionEnd", "ended", None),
        ("SessionStart", "registered", None),
    ],
}


def test_every_recorded_story_is_told() -> None:
    assert EXPECTED.keys() == STORIES.keys()


@pytest.mark.parametrize("story", STORIES)
def test_a_recorded_story(url: str, db: Db, story: str) -> None:
    async def tell() -> list[tuple[str, str, str | None]]:
        happened = []
        async with crew(url) as staff:
            for report in STORIES[story]:
                stored = await staff.send(report)
                effect = db.execute("select effect from holdfast.event where id = %s", [stored.event_id]).fetchone()
                state = db.execute("select state from holdfast.command order by id desc limit 1").fetchone()
                assert effect is not None
                happened.append((report["hook_event_name"], effect[0], state[0] if state else None))
        return happened

    assert asyncio.run(tell()) == EXPECTED[story]


def questions(db: Db) -> list[str]:
    return [text for (text,) in db.execute("select text from holdfast.turn where intent = 'QUESTION' order by number")]


def test_a_permission_says_what_for(url: str, db: Db) -> None:
    async def tell() -> None:
        async with crew(url) as staff:
            for report in STORIES["a call that was allowed fails, and the next one asks"]:
                await staff.send(report)

    asyncio.run(tell())
    assert questions(db) == ["permission to use Bash: rm nofile; false", "permission to use Bash: mkdir x/y/z"]


def test_what_went_wrong_is_kept_as_the_last_word(url: str, db: Db) -> None:
    async def tell() -> None:
        async with crew(url) as staff:
            for report in STORIES["the service refuses"]:
                await staff.send(report)

    asyncio.run(tell())
    last = db.execute("select actor, intent, text from holdfast.turn order by number desc limit 1").fetchone()
    assert last == ("AGENT", "END_OF_COMMAND", "API Error: 400 scripted failure")
