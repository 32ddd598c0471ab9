"""What each event does to its agent. Runs under the agent's lock, in one transaction, and touches nothing but rows.

An effect returns a word or two on what came of it, which is kept with the event.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from datetime import timedelta
from types import MappingProxyType
from typing import Any, Final

from . import words
from .ledger import Ledger
from .machine import Actor, Intent, State
from .outbox import Kind
from .payload import label, storable
from .tables import Event

QUESTION_TOOLS: Final = frozenset({"AskUserQuestion", "ExitPlanMode"})
_LONGEST_PROJECT: Final = 2000
"""Bytes. What is longer would not fit the index that keeps a folder from being two projects."""
SAME_PROMPT_WITHIN: Final = timedelta(seconds=5)

Effect = Callable[[Ledger, Event, dict[str, Any]], Awaitable[str]]


async def apply(ledger: Ledger, event: Event) -> str:
    """Brings the agent's rows to what they are after this event."""
    agent, payload = ledger.agent, event.payload
    agent.last_seen_at = max(agent.last_seen_at, event.received_at)
    await _fill_gaps(ledger, payload)
    effect = EFFECTS.get(event.name)
    if effect is None:
        return "kept"
    if agent.ended_at is not None and event.name not in _MAY_REVIVE:
        return "kept: the agent has ended"
    return await effect(ledger, event, payload)


async def _fill_gaps(ledger: Ledger, payload: dict[str, Any]) -> None:
    agent = ledger.agent
    agent.cwd = agent.cwd or storable(payload.get("cwd"))
    agent.transcript_path = agent.transcript_path or storable(payload.get("transcript_path"))
    agent.model = agent.model or label(payload.get("model"))
    agent.permission_mode = label(payload.get("permission_mode")) or agent.permission_mode
    effort = payload.get("effort")
    agent.effort = label(effort.get("level") if isinstance(effort, dict) else None) or agent.effort
    if agent.project_id is None and agent.cwd and len(agent.cwd.encode()) <= _LONGEST_PROJECT:
        agent.project_id = await ledger.project(agent.cwd)


async def _session_start(ledger: Ledger, event: Event, payload: dict[str, Any]) -> str:
    agent = ledger.agent
    agent.source = label(payload.get("source")) if not event.late else agent.source or label(payload.get("source"))
    first = agent.registered_at is None
    agent.registered_at = agent.registered_at or ledger.now
    if agent.ended_at is not None:
        if event.late:  # it was spooled: what it tells of is over
            return "kept: the agent has ended"
        _revive(ledger)
        return "revived"
    if not event.late:
        agent.transcript_path = storable(payload.get("transcript_path")) or agent.transcript_path
    return "registered" if first else "known"


async def _user_prompt_submit(ledger: Ledger, event: Event, payload: dict[str, Any]) -> str:
    if ledger.agent.ended_at is not None:
        if event.late:
            return "kept: the agent has ended"
        _revive(ledger)  # it lives, whatever became of its SessionStart
    said, prompt_id = storable(payload.get("prompt")) or "", payload.get("prompt_id")
    command = await ledger.open_command()
    if words.is_interrupt(said):
        if command is None:
            return "interrupt: nothing was open"
        await ledger.move(command, Actor.AGENT, Intent.END_OF_COMMAND)
        return "interrupted"
    if words.is_from_the_system(said):
        return "kept: not the user's words"
    if command is not None and await ledger.said_just_before(command, said, event, SAME_PROMPT_WITHIN):
        return "repeated"
    answers = command is not None and command.stands is State.AWAITING_INPUT and command.waits_for == "prompt"
    intent = Intent.ANSWER if answers else Intent.COMMAND
    # Another prompt id: the client has begun anew. Without ids it may have been added to what is under way.
    anew = command is not None and prompt_id is not None and prompt_id != command.prompt_id
    before = command
    command = await ledger.move(command, Actor.USER, intent, prompt_id=prompt_id, anew=anew)
    await ledger.add_turn(
        command, Actor.USER, intent, source=f"prompt:{prompt_id or f'event {event.number}'}", event=event, text=said
    )
    return "answered" if answers else "opened" if command is not before else "added"


async def _pre_tool_use(ledger: Ledger, event: Event, payload: dict[str, Any]) -> str:
    if storable(payload.get("tool_name")) in QUESTION_TOOLS:
        return await _ask(ledger, event, payload, "tool", words.question_of(payload.get("tool_input")))
    command = await ledger.open_command()
    if command is not None and command.stands is State.AWAITING_INPUT:
        return "kept: input is awaited"  # a call beside the one that waits
    await ledger.move(command, Actor.AGENT, Intent.PROGRESS, prompt_id=payload.get("prompt_id"))
    return "at work"


async def _permission_request(ledger: Ledger, event: Event, payload: dict[str, Any]) -> str:
    return await _ask(ledger, event, payload, "permission", f"permission to use {storable(payload.get('tool_name'))}")


async def _notification(ledger: Ledger, event: Event, payload: dict[str, Any]) -> str:
    kind = storable(payload.get("notification_type"))
    if kind not in (None, "permission_prompt", "idle_prompt", "elicitation_dialog"):
        return "kept: asks for nothing"
    if kind in (None, "idle_prompt") and await ledger.open_command() is None:
        return "kept: nothing is open"  # the client waits for the next command, as it should
    return await _ask(ledger, event, payload, "notification", payload.get("message"))


async def _ask(ledger: Ledger, event: Event, payload: dict[str, Any], what: str, text: object) -> str:
    command = await ledger.open_command()
    waited_before = command is not None and command.stands is State.AWAITING_INPUT
    command = await ledger.move(command, Actor.AGENT, Intent.QUESTION, prompt_id=payload.get("prompt_id"))
    if waited_before and what != "tool":
        return "still awaiting input"  # a permission and its notification are one question
    command.waits_for = what
    command.waits_for_tool_use = storable(payload.get("tool_use_id"))
    await ledger.add_turn(
        command,
        Actor.AGENT,
        Intent.QUESTION,
        source=f"event:{event.number}",
        event=event,
        text=text,
        tool_name=payload.get("tool_name"),
    )
    await ledger.tell(Kind.AWAITING_INPUT, command, event, text)
    return "awaiting input"


async def _post_tool_use(ledger: Ledger, event: Event, payload: dict[str, Any]) -> str:
    command = await ledger.open_command()
    tool_use = payload.get("tool_use_id")
    resumed = False
    if command is not None and command.stands is State.AWAITING_INPUT:
        if command.waits_for_tool_use not in (None, tool_use):
            return "kept: input is awaited"  # a call beside the one that waits
        await ledger.move(command, Actor.USER, Intent.ANSWER)
        resumed = True
    command = await ledger.move(command, Actor.AGENT, Intent.PROGRESS, prompt_id=payload.get("prompt_id"))
    source = f"tool:{tool_use}" if tool_use is not None else f"event:{event.number}"
    tool = payload.get("tool_name")
    await ledger.add_turn(command, Actor.AGENT, Intent.PROGRESS, source=source, event=event, tool_name=tool)
    return "resumed" if resumed else "progress"


async def _stop(ledger: Ledger, event: Event, payload: dict[str, Any]) -> str:
    command = await ledger.open_command()
    prompt_id = payload.get("prompt_id")
    if command is None:
        last = await ledger.last_command()
        if last is not None and (prompt_id is None or last.prompt_id == prompt_id):
            return "already complete"
    said = storable(payload.get("last_assistant_message"))
    if said is None:
        if command is None:
            return "kept: nothing is open"
        await ledger.defer_stop(command, event)
        return "deferred"
    return await conclude(ledger, event, said, prompt_id=prompt_id)


async def conclude(ledger: Ledger, event: Event, said: str | None, *, prompt_id: str | None = None) -> str:
    """The agent has said its last word for now: it asks, or it is done."""
    command = await ledger.open_command()
    asks = said is not None and words.asks(said)
    intent = Intent.QUESTION if asks else Intent.COMPLETION
    command = await ledger.move(command, Actor.AGENT, intent, prompt_id=prompt_id)
    if asks:
        command.waits_for, command.waits_for_tool_use = "prompt", None
    await ledger.add_turn(command, Actor.AGENT, intent, source=f"event:{event.number}", event=event, text=said)
    await ledger.tell(Kind.AWAITING_INPUT if asks else Kind.COMPLETE, command, event, said)
    return "asked" if asks else "completed"


async def _session_end(ledger: Ledger, event: Event, payload: dict[str, Any]) -> str:
    command = await ledger.open_command()
    if command is not None:
        await ledger.move(command, Actor.AGENT, Intent.END_OF_COMMAND)
        await ledger.tell(Kind.COMPLETE, command, event)
    ledger.agent.ended_at = ledger.now
    ledger.agent.end_reason = label(payload.get("reason"))
    await ledger.tell(Kind.ENDED, command, event, ledger.agent.end_reason)
    return "ended"


def _revive(ledger: Ledger) -> None:
    ledger.agent.ended_at = ledger.agent.end_reason = None


EFFECTS: Final = MappingProxyType[str, Effect](
    {
        "SessionStart": _session_start,
        "UserPromptSubmit": _user_prompt_submit,
        "PreToolUse": _pre_tool_use,
        "PermissionRequest": _permission_request,
        "Notification": _notification,
        "PostToolUse": _post_tool_use,
        "Stop": _stop,
        "SessionEnd": _session_end,
    }
)
_MAY_REVIVE: Final = frozenset({"SessionStart", "UserPromptSubmit"})
