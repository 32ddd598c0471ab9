"""Coding agents: the inbox of their events, and what follows from it (``v4_agents.sql``)."""

from pathlib import Path

from alembic import op

revision = "4"
down_revision = "3"


def upgrade() -> None:
    op.execute(Path(__file__).with_suffix(".sql").read_text())


def downgrade() -> None:
    op.execute(
        """
        drop function holdfast.store_event, holdfast.forget_agents;
        drop table holdfast.token, holdfast.outbox, holdfast.deferred_stop, holdfast.turn, holdfast.event,
            holdfast.command, holdfast.agent, holdfast.project
        """
    )
