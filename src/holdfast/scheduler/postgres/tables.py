"""The tables as SQLAlchemy's models, for an application's own queries, too. The migrations make them; a test compares.

The scheduler writes by statements on ``actions`` and ``runs``, not by a session: what it changes are rows as they are
under their locks, a hundred at a time, and never objects that remember how a row was when it was read.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar, Final, cast

from sqlalchemy import BigInteger, Double, ForeignKey, MetaData, Table, Text
from sqlalchemy.dialects.postgresql import JSONB, TIMESTAMP
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from ...schema.migrations import SCHEMA


class Base(DeclarativeBase):
    metadata = MetaData(schema=SCHEMA)
    type_annotation_map: ClassVar = {
        str: Text,
        float: Double,
        datetime: TIMESTAMP(timezone=True),
        dict[str, Any]: JSONB,
    }


class ActionRow(Base):
    __tablename__ = "scheduled_action"
    id: Mapped[int] = mapped_column(primary_key=True)
    namespace: Mapped[int]
    name: Mapped[str]
    action_type: Mapped[str]
    action_config: Mapped[dict[str, Any]]
    schedule_type: Mapped[str]
    cron_expression: Mapped[str | None]
    timezone: Mapped[str]
    interval_seconds: Mapped[float | None]
    run_at: Mapped[datetime | None]
    event: Mapped[str | None]
    start_at: Mapped[datetime | None]
    end_at: Mapped[datetime | None]
    max_executions: Mapped[int | None]
    allow_concurrent: Mapped[bool]
    misfire: Mapped[str]
    misfire_limit: Mapped[int]
    misfire_grace_seconds: Mapped[float]
    jitter_seconds: Mapped[float]
    timeout_seconds: Mapped[float | None]
    max_retries: Mapped[int]
    retry_delay_seconds: Mapped[float]
    recovery: Mapped[str]
    status: Mapped[str]
    execution_count: Mapped[int] = mapped_column(BigInteger)
    next_occurrence: Mapped[datetime | None]
    next_run_at: Mapped[datetime | None]
    last_run_at: Mapped[datetime | None]
    created_at: Mapped[datetime]
    updated_at: Mapped[datetime]


class RunRow(Base):
    __tablename__ = "scheduled_run"
    id: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    namespace: Mapped[int]
    action_id: Mapped[int] = mapped_column(ForeignKey(ActionRow.id, ondelete="CASCADE"))
    scheduled_for: Mapped[datetime]
    trigger: Mapped[str]
    payload: Mapped[Any | None] = mapped_column(JSONB)
    idempotency_key: Mapped[str]
    exclusive: Mapped[bool]
    state: Mapped[str]
    attempt: Mapped[int]
    recoveries: Mapped[int]
    due_at: Mapped[datetime | None]
    instance: Mapped[str | None]
    lease_until: Mapped[datetime | None]
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]
    duration_seconds: Mapped[float | None]
    error: Mapped[str | None]
    result: Mapped[Any | None] = mapped_column(JSONB)


actions: Final = cast(Table, ActionRow.__table__)
runs: Final = cast(Table, RunRow.__table__)
