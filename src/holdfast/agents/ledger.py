"""One agent's rows inside one transaction: its open command, and how turns move it through the state machine."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from datetime import datetime, timedelta
from typing import Final

from sqlalchemy import func, select
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncSession

from . import machine, outbox
from .database import notify
from .machine import Actor, Intent, State
from .outbox import Kind
from .payload import storable
from .tables import Agent, Command, DeferredStop, Event, Outbox, Project, Turn

_LONGEST_MESSAGE: Final = 300
"""Characters of what the agent said: enough to know whether to go and look."""

_MOST_CALLS_AT_ONCE: Final = 20


class Ledger:
    """Everything is read in this transaction, under the agent's lock: nothing from before it is used."""

    def __init__(self, db: AsyncSession, agent: Agent, now: datetime, tells: AbstractSet[Kind]) -> None:
        self._db = db
        self._tells = tells
        self.agent = agent
        self.now = now
        """The database's clock, at the beginning of this transaction."""

    @classmethod
    async def open(cls, db: AsyncSession, agent_id: int, *, tells: AbstractSet[Kind] = frozenset()) -> Ledger:
        """Locks the agent's row to the end of the transaction. ``tells``: what somebody wants to be told of.

        The agent's lock keeps others out already; but it may have been lost without our knowing (a database that was
        restarted), and then two would be at work on one event.
        """
        row = await db.execute(
            select(Agent, func.now()).where(Agent.id == agent_id).with_for_update(key_share=True, of=Agent)
        )
        agent, now = row.one()
        return cls(db, agent, now, tells)

    async def open_command(self) -> Command | None:
        query = select(Command).where(Command.agent_id == self.agent.id, Command.state != State.COMPLETE)
        return (await self._db.execute(query)).scalar_one_or_none()

    async def last_command(self) -> Command | None:
        query = select(Command).where(Command.agent_id == self.agent.id).order_by(Command.id.desc()).limit(1)
        return (await self._db.execute(query)).scalar_one_or_none()

    async def move(
        self, command: Command | None, actor: Actor, intent: Intent, *, prompt_id: str | None = None, anew: bool = False
    ) -> Command:
        """Takes the command one step on, or opens one. The only place that sets a command's state."""
        before = command.stands if command is not None else State.IDLE
        step = machine.step(before, actor, intent, anew=anew)
        if command is not None and step.opens_next:
            self._set_state(command, State.COMPLETE)
            await self._db.flush()  # before the next one: the database allows one that is open
            command = None
        if command is None:
            command = Command(agent_id=self.agent.id, prompt_id=prompt_id, opened_at=self.now)
            self._db.add(command)
        self._set_state(command, step.state)
        await self._db.flush()
        return command

    def _set_state(self, command: Command, state: State) -> None:
        if command.state != state:  # each step of a long work is none: one wants to see since when it lasts
            command.state = state
            command.changed_at = self.now
        command.completed_at = self.now if state is State.COMPLETE else None
        if state is not State.AWAITING_INPUT:
            command.waits_for = command.waits_for_tool_use = None

    async def add_turn(
        self,
        command: Command,
        actor: Actor,
        intent: Intent,
        *,
        source: str,
        event: Event,
        text: object = None,
        tool_name: object = None,
    ) -> bool:
        """Records a turn, unless the same one is there already."""
        number = select(func.coalesce(func.max(Turn.number), 0) + 1).where(Turn.agent_id == self.agent.id)
        statement = (
            insert(Turn)
            .values(
                agent_id=self.agent.id,
                command_id=command.id,
                number=number.scalar_subquery(),
                actor=actor,
                intent=intent,
                source=source,
                text=storable(text),
                tool_name=storable(tool_name),
                event_id=event.id,
            )
            .on_conflict_do_nothing(index_elements=["agent_id", "source"])
            .returning(Turn.id)
        )
        return (await self._db.execute(statement)).scalar_one_or_none() is not None

    async def said_just_before(self, command: Command, text: str, event: Event, within: timedelta) -> bool:
        """Whether the user's last words to this command were the same, a moment before this event.

        By when they arrived, not by when they are worked off: what was left lying may be done all at once.
        """
        if event.late:
            return False  # those of a spool arrive all at once, too
        query = (
            select(Turn.text, Event.received_at)
            .join(Event, Event.id == Turn.event_id)
            .where(Turn.command_id == command.id, Turn.actor == Actor.USER)
            .order_by(Turn.number.desc())
            .limit(1)
        )
        last = (await self._db.execute(query)).one_or_none()
        return last is not None and last[0] == text and event.received_at - last[1] < within

    async def heard(self, command: Command, prompt_id: str) -> bool:
        """Whether this prompt belongs to this command: opened it, or answered a question of it."""
        said = select(Turn.id).where(Turn.command_id == command.id, Turn.source == f"prompt:{prompt_id}")
        return command.prompt_id == prompt_id or (await self._db.execute(said)).scalar_one_or_none() is not None

    async def call_behind(self, request: Event) -> str | None:
        """The tool call that a permission is asked for. The client does not name it: it is the last one like it."""
        recent = (
            select(Event.payload)
            .where(Event.agent_id == self.agent.id, Event.name == "PreToolUse", Event.number < request.number)
            .order_by(Event.number.desc())
            .limit(_MOST_CALLS_AT_ONCE)
        )
        same = ("tool_name", "tool_input", "agent_id")
        for call in (await self._db.execute(recent)).scalars():
            id_ = storable(call.get("tool_use_id"))
            if id_ and all(call.get(field) == request.payload.get(field) for field in same):
                return id_
        return None

    async def project(self, path: str) -> int:
        """The project of a folder, made if need be. Agents of one project may come here at once."""
        values = {"tenant": self.agent.tenant, "path": path}
        await self._db.execute(insert(Project).values(**values).on_conflict_do_nothing())
        query = select(Project.id).where(Project.tenant == self.agent.tenant, Project.path == path)
        return (await self._db.execute(query)).scalar_one()

    async def defer_stop(self, command: Command, event: Event) -> None:
        values = {"agent_id": self.agent.id, "command_id": command.id, "event_id": event.id}
        await self._db.execute(insert(DeferredStop).values(**values).on_conflict_do_nothing())
        await notify(self._db, "deferred")

    async def tell(self, kind: Kind, command: Command | None, event: Event, said: object = None) -> None:
        """Writes a message to the outbox, if somebody wants it: it goes out once this transaction is durable."""
        if kind not in self._tells:
            return
        agent = self.agent
        message = {
            "kind": kind,
            "tenant": agent.tenant,
            "agent": agent.id,
            "session": agent.session_id,
            "project": agent.cwd,
            "command": {"id": command.id, "state": command.state} if command is not None else None,
            "text": _shortened(storable(said)),
            "event": event.number,
            "at": event.received_at.isoformat(),
        }
        values = {"agent_id": agent.id, "kind": kind, "source": f"event:{event.number}", "payload": message}
        await self._db.execute(insert(Outbox).values(**values).on_conflict_do_nothing())
        await notify(self._db, outbox.WORD)


def _shortened(said: str | None) -> str | None:
    return said if said is None or len(said) <= _LONGEST_MESSAGE else f"{said[: _LONGEST_MESSAGE - 1]}…"
