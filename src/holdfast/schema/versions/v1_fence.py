"""The numbers that fence grants, for every kind of lock in this database."""

from alembic import op

revision = "1"
down_revision = None


def upgrade() -> None:
    # No CACHE: each session would take numbers in advance, and they would not grow in the order of the grants.
    op.execute("create sequence holdfast.fence as bigint")


def downgrade() -> None:
    op.execute("drop sequence holdfast.fence")
