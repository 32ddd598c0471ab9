"""Scheduled actions and their runs (``v3_scheduler.sql``)."""

from pathlib import Path

from alembic import op

revision = "3"
down_revision = "2"


def upgrade() -> None:
    op.execute(Path(__file__).with_suffix(".sql").read_text())


def downgrade() -> None:
    op.execute("drop table holdfast.scheduled_run, holdfast.scheduled_action")
    op.execute("drop function holdfast.scheduler_announce")
