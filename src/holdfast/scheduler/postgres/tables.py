"""The tables as SQLAlchemy knows them. The migrations make them; a test compares the two."""

from __future__ import annotations

from sqlalchemy import BigInteger, Boolean, Column, DateTime, Double, ForeignKey, Integer, MetaData, Table, Text
from sqlalchemy.dialects.postgresql import JSONB

metadata = MetaData(schema="holdfast")

_WHEN = DateTime(timezone=True)

actions = Table(
    "scheduled_action",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("namespace", Integer, nullable=False),
    Column("name", Text, nullable=False),
    Column("action_type", Text, nullable=False),
    Column("action_config", JSONB, nullable=False),
    Column("schedule_type", Text, nullable=False),
    Column("cron_expression", Text),
    Column("timezone", Text, nullable=False),
    Column("interval_seconds", Double),
    Column("run_at", _WHEN),
    Column("event", Text),
    Column("start_at", _WHEN),
    Column("end_at", _WHEN),
    Column("max_executions", Integer),
    Column("allow_concurrent", Boolean, nullable=False),
    Column("misfire", Text, nullable=False),
    Column("misfire_limit", Integer, nullable=False),
    Column("misfire_grace_seconds", Double, nullable=False),
    Column("jitter_seconds", Double, nullable=False),
    Column("timeout_seconds", Double),
    Column("max_retries", Integer, nullable=False),
    Column("retry_delay_seconds", Double, nullable=False),
    Column("recovery", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("execution_count", BigInteger, nullable=False),
    Column("next_occurrence", _WHEN),
    Column("next_run_at", _WHEN),
    Column("last_run_at", _WHEN),
    Column("created_at", _WHEN, nullable=False),
    Column("updated_at", _WHEN, nullable=False),
)

runs = Table(
    "scheduled_run",
    metadata,
    Column("id", BigInteger, primary_key=True),
    Column("namespace", Integer, nullable=False),
    Column("action_id", ForeignKey(actions.c.id, ondelete="CASCADE"), nullable=False),
    Column("scheduled_for", _WHEN, nullable=False),
    Column("trigger", Text, nullable=False),
    Column("payload", JSONB),
    Column("idempotency_key", Text, nullable=False),
    Column("exclusive", Boolean, nullable=False),
    Column("state", Text, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("recoveries", Integer, nullable=False),
    Column("due_at", _WHEN),
    Column("instance", Text),
    Column("lease_until", _WHEN),
    Column("started_at", _WHEN),
    Column("finished_at", _WHEN),
    Column("duration_seconds", Double),
    Column("error", Text),
    Column("result", JSONB),
)
