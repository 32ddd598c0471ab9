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
from .tables import Command, Event

QUESTION_TOOLS: Final = frozenset({"AskUserQuestion", "ExitPlanMode"})
_LONGEST_PROJECT: Final = 2000
"""Bytes. What is longer would not fit the index that keeps a folder from being two projects."""
INTERRUPT: Final = "UserInterrupt"
"""Not the client's: it tells nobody of an interrupt. Found in the transcript, and told like any other event."""
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
        return await _end_command(ledger, event, said, "interrupted")
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
        call = storable(payload.get("tool_use_id"))
        return await _ask(ledger, event, payload, "tool", words.question_of(payload.get("tool_input")), call)
    command = await ledger.open_command()
    if command is not None and command.stands is State.AWAITING_INPUT:
        return "kept: input is awaited"  # a call beside the one that waits
    await ledger.move(command, Actor.AGENT, Intent.PROGRESS, prompt_id=payload.get("prompt_id"))
    return "at work"


async def _permission_request(ledger: Ledger, event: Event, payload: dict[str, Any]) -> str:
    asked = words.permission_asked(payload.get("tool_name"), payload.get("tool_input"))
    return await _ask(ledger, event, payload, "permission", asked, await ledger.call_behind(event))


async def _notification(ledger: Ledger, event: Event, payload: dict[str, Any]) -> str:
    kind = storable(payload.get("notification_type"))
    if kind not in (None, "permission_prompt", "idle_prompt", "elicitation_dialog"):
        return "kept: asks for nothing"
    if kind in (None, "idle_prompt") and await ledger.open_command() is None:
        return "kept: nothing is open"  # the client waits for the next command, as it should
    return await _ask(ledger, event, payload, "notification", payload.get("message"))


async def _ask(
    ledger: Ledger, event: Event, payload: dict[str, Any], what: str, text: object, call: str | None = None
) -> str:
    command = await ledger.open_command()
    waited_before = command is not None and command.stands is State.AWAITING_INPUT
    waiting = command.waiting_calls if command is not None else frozenset[str]()
    command = await ledger.move(command, Actor.AGENT, Intent.QUESTION, prompt_id=payload.get("prompt_id"))
    if waited_before and (call is None or call in waiting):
        return "still awaiting input"  # a question, the permission to ask it, and the notification are one
    command.waits_for = what
    command.waiting_calls = waiting | {call} if call is not None else frozenset()
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
    """A call has ended, well or not: whatever the user was asked for it is answered."""
    command = await ledger.open_command()
    tool_use = storable(payload.get("tool_use_id"))
    resumed = False
    if command is not None and command.stands is State.AWAITING_INPUT:
        if not await _answered(ledger, command, frozenset({tool_use}) if tool_use else frozenset()):
            return "kept: input is awaited"
        resumed = True
    command = await ledger.move(command, Actor.AGENT, Intent.PROGRESS, prompt_id=payload.get("prompt_id"))
    source = f"tool:{tool_use}" if tool_use is not None else f"event:{event.number}"
    tool = payload.get("tool_name")
    await ledger.add_turn(command, Actor.AGENT, Intent.PROGRESS, source=source, event=event, tool_name=tool)
    return "resumed" if resumed else "progress"


async def _post_tool_batch(ledger: Ledger, event: Event, payload: dict[str, Any]) -> str:
    """All calls of one message have ended. Of one that was refused nothing else tells."""
    command = await ledger.open_command()
    if command is None or command.stands is not State.AWAITING_INPUT:
        return "kept: no input is awaited"
    calls = payload.get("tool_calls")
    ended = frozenset(
        id_
        for call in (calls if isinstance(calls, list) else [])
        if isinstance(call, dict) and (id_ := storable(call.get("tool_use_id")))
    )
    if payload.get("agent_id") is not None and not command.waiting_calls & ended:
        return "kept: a subagent's"
    return "resumed" if await _answered(ledger, command, ended) else "kept: input is awaited"


async def _answered(ledger: Ledger, command: Command, ended: frozenset[str]) -> bool:
    """These calls wait no more. Whether that was all the command waited for; if so it goes on."""
    if command.waiting_calls:
        command.waiting_calls = left = command.waiting_calls - ended
        if left:
            return False  # beside these, another one waits
    await ledger.move(command, Actor.USER, Intent.ANSWER)
    return True


async def _stop_failure(ledger: Ledger, event: Event, payload: dict[str, Any]) -> str:
    """The agent could not go on: its service refused. It comes instead of a stop."""
    if payload.get("agent_id") is not None:
        return "kept: a subagent's"
    said = storable(payload.get("last_assistant_message")) or storable(payload.get("error"))
    command = await ledger.open_command()
    effect = await _end_command(ledger, event, said, "failed")
    if command is not None:
        await ledger.tell(Kind.COMPLETE, command, event, said)
    return effect


async def _user_interrupt(ledger: Ledger, event: Event, payload: dict[str, Any]) -> str:
    command = await ledger.open_command()
    prompt_id = storable(payload.get("prompt_id"))
    if command is not None and (prompt_id is None or not await ledger.heard(command, prompt_id)):
        return "kept: of an earlier command"
    return await _end_command(ledger, event, storable(payload.get("text")), "interrupted")


async def _end_command(ledger: Ledger, event: Event, said: str | None, effect: str) -> str:
    command = await ledger.open_command()
    if command is None:
        return "kept: nothing is open"
    end = Intent.END_OF_COMMAND
    await ledger.move(command, Actor.AGENT, end)
    await ledger.add_turn(command, Actor.AGENT, end, source=f"event:{event.number}", event=event, text=said)
    return effect


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
        command.waits_for, command.waiting_calls = "prompt", frozenset()
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
        "PostToolUseFailure": _post_tool_use,
        "PostToolBatch": _post_tool_batch,
        "Stop": _stop,
        "StopFailure": _stop_failure,
        INTERRUPT: _user_interrupt,
        "SessionEnd": _session_end,
    }
)
_MAY_REVIVE: Final = frozenset({"SessionStart", "UserPromptSubmit"})
