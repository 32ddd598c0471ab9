"""Leases: who holds what until when, who waits, and the functions that decide it (``v2_leases.sql``)."""

from pathlib import Path

from alembic import op

revision = "2"
down_revision = "1"


def upgrade() -> None:
    op.execute(Path(__file__).with_suffix(".sql").read_text())


def downgrade() -> None:
    op.execute(
        """
        drop table holdfast.lease, holdfast.lease_waiter cascade;
        drop function holdfast.lease_lock, holdfast.lease_channel, holdfast.mailbox_lives, holdfast.lease_watch,
            holdfast.lease_hand_on, holdfast.lease_take, holdfast.lease_release, holdfast.lease_extend,
            holdfast.lease_detach, holdfast.lease_rotate, holdfast.lease_evict, holdfast.lease_sweep
        """
    )
