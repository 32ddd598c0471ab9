"""The numbers that fence grants, for every kind of lock in this database."""

from alembic import op

revision = "1"
down_revision = None


def upgrade() -> None:
    # No CACHE: each session would take numbers in advance, and they would not grow in the order of the grants.
    # Steps of 64: a process that hands a lock on among its own threads counts up from the number of its grant.
    op.execute("create sequence holdfast.fence as bigint increment by 64")
    # A standby that is promoted may not have heard of the last numbers. Its timeline is a new one, and goes first.
    op.execute("""
        create function holdfast.next_fence() returns bigint language sql volatile parallel unsafe as $$
            select (('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint << 44)
                + nextval('holdfast.fence')
        $$""")


def downgrade() -> None:
    op.execute("drop function holdfast.next_fence()")
    op.execute("drop sequence holdfast.fence")
