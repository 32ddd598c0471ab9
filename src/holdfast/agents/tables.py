"""The tables of schema ``holdfast`` that agents live in, as SQLAlchemy sees them. ``v4_agents.sql`` makes them."""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar
from uuid import UUID

from sqlalchemy import JSON, BigInteger, ForeignKey, Identity, MetaData, SmallInteger, Text, func, text
from sqlalchemy.dialects.postgresql import ARRAY, BYTEA, TIMESTAMP
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from ..schema.migrations import SCHEMA
from .machine import State

Moment = TIMESTAMP(timezone=True)


class Base(DeclarativeBase):
    metadata = MetaData(schema=SCHEMA)
    type_annotation_map: ClassVar = {int: BigInteger, str: Text, datetime: Moment, bytes: BYTEA}


def _id() -> Mapped[int]:
    return mapped_column(Identity(always=True), primary_key=True)


def _reference(table: str) -> Any:
    return mapped_column(ForeignKey(f"{SCHEMA}.{table}.id"))


class Project(Base):
    """A folder that agents work in."""

    __tablename__ = "project"
    id: Mapped[int] = _id()
    tenant: Mapped[str]
    path: Mapped[str]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())


class Agent(Base):
    """One session of a coding agent. Changed only under its lock."""

    __tablename__ = "agent"
    id: Mapped[int] = _id()
    tenant: Mapped[str]
    session_id: Mapped[str]
    project_id: Mapped[int | None] = _reference("project")
    cwd: Mapped[str | None]
    transcript_path: Mapped[str | None]
    model: Mapped[str | None]
    source: Mapped[str | None]
    permission_mode: Mapped[str | None]
    effort: Mapped[str | None]
    client_version: Mapped[str | None]
    git_branch: Mapped[str | None]
    registered_at: Mapped[datetime | None]
    first_seen_at: Mapped[datetime] = mapped_column(server_default=func.now())
    last_seen_at: Mapped[datetime] = mapped_column(server_default=func.now())
    ended_at: Mapped[datetime | None]
    end_reason: Mapped[str | None]


class Command(Base):
    """What an agent was asked to do. The database allows one that is not COMPLETE for each agent."""

    __tablename__ = "command"
    id: Mapped[int] = _id()
    agent_id: Mapped[int] = _reference("agent")
    state: Mapped[str]
    prompt_id: Mapped[str | None]
    waits_for: Mapped[str | None]
    waits_for_tool_use: Mapped[str | None]
    opened_at: Mapped[datetime] = mapped_column(server_default=func.now())
    changed_at: Mapped[datetime] = mapped_column(server_default=func.now())
    completed_at: Mapped[datetime | None]

    @property
    def stands(self) -> State:
        return State(self.state)

    @property
    def waiting_calls(self) -> frozenset[str]:
        """The tool calls that wait for the user: several can at once. None: it is not known which."""
        return frozenset((self.waits_for_tool_use or "").split())  # ids have no spaces in them

    @waiting_calls.setter
    def waiting_calls(self, calls: frozenset[str]) -> None:
        self.waits_for_tool_use = " ".join(sorted(calls)) or None


class Event(Base):
    """One event as the client reported it: the durable inbox."""

    __tablename__ = "event"
    id: Mapped[int] = _id()
    agent_id: Mapped[int] = _reference("agent")
    number: Mapped[int]
    name: Mapped[str]
    payload: Mapped[dict[str, Any]] = mapped_column(JSON)
    identity: Mapped[str | None]
    delivery_id: Mapped[str | None]
    digest: Mapped[bytes]
    late: Mapped[bool] = mapped_column(server_default=text("false"))
    status: Mapped[str] = mapped_column(server_default="pending")
    received_at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())
    processed_at: Mapped[datetime | None]
    processed_in: Mapped[int | None]
    effect: Mapped[str | None]
    failures: Mapped[int] = mapped_column(SmallInteger, server_default="0")
    error: Mapped[str | None]
    retry_at: Mapped[datetime | None]


class Turn(Base):
    """One contribution to a conversation, by the user or the agent."""

    __tablename__ = "turn"
    id: Mapped[int] = _id()
    agent_id: Mapped[int] = _reference("agent")
    command_id: Mapped[int] = _reference("command")
    number: Mapped[int]
    actor: Mapped[str]
    intent: Mapped[str]
    source: Mapped[str]
    text: Mapped[str | None]
    tool_name: Mapped[str | None]
    event_id: Mapped[int | None] = _reference("event")
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())


class DeferredStop(Base):
    """A stop whose last message has yet to appear in the transcript."""

    __tablename__ = "deferred_stop"
    id: Mapped[int] = _id()
    agent_id: Mapped[int] = _reference("agent")
    command_id: Mapped[int] = _reference("command")
    event_id: Mapped[int] = _reference("event")
    tries: Mapped[int] = mapped_column(SmallInteger, server_default="0")
    due_at: Mapped[datetime] = mapped_column(server_default=func.now())


class Outbox(Base):
    """Something slow that a transaction asked for, to be done after it."""

    __tablename__ = "outbox"
    id: Mapped[int] = _id()
    agent_id: Mapped[int] = _reference("agent")
    kind: Mapped[str]
    source: Mapped[str]
    key: Mapped[UUID] = mapped_column(server_default=func.gen_random_uuid())
    payload: Mapped[dict[str, Any]] = mapped_column(JSON)
    status: Mapped[str] = mapped_column(server_default="waiting")
    due_at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())
    attempts: Mapped[int] = mapped_column(SmallInteger, server_default="0")
    error: Mapped[str | None]
    created_at: Mapped[datetime] = mapped_column(server_default=func.clock_timestamp())
    settled_at: Mapped[datetime | None]


class Token(Base):
    """Who may call. The token itself is not here, only its digest."""

    __tablename__ = "token"
    digest: Mapped[bytes] = mapped_column(primary_key=True)
    tenant: Mapped[str]
    scopes: Mapped[list[str]] = mapped_column(ARRAY(Text))
    note: Mapped[str | None]
    created_at: Mapped[datetime] = mapped_column(server_default=func.now())
    expires_at: Mapped[datetime | None]
    name: Mapped[str | None]
    revoked_at: Mapped[datetime | None]
