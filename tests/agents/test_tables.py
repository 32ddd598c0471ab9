"""What the database itself forbids, whoever writes to it; and that SQLAlchemy's view of the tables is true."""

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
import sqlalchemy
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from psycopg.errors import CheckViolation, UniqueViolation

from holdfast.agents.tables import Base
from holdfast.testing import PATIENCE

Db = psycopg.Connection[Any]


@pytest.fixture
def agent(db: Db) -> int:
    row = db.execute("insert into holdfast.agent (tenant, session_id) values ('t', 's') returning id").fetchone()
    assert row is not None
    return int(row[0])


def command(db: Db, agent: int, state: str = "PROCESSING") -> int:
    done = "now()" if state == "COMPLETE" else "null"
    row = db.execute(
        f"insert into holdfast.command (agent_id, state, completed_at) values (%s, %s, {done}) returning id",
        (agent, state),
    ).fetchone()
    assert row is not None
    return int(row[0])


def test_sqlalchemy_sees_the_tables_as_they_are(url: str) -> None:
    engine = sqlalchemy.create_engine("postgresql+psycopg://", creator=lambda: psycopg.connect(url))
    ours = {table.name for table in Base.metadata.tables.values()}

    def of_ours(thing: Any, name: str | None, kind: str, reflected: bool, compared_to: Any) -> bool:
        # Constraints are the migration's business, and proven below.
        return kind == "column" or (kind == "table" and name in ours)

    with engine.connect() as connection:
        options = {"include_schemas": True, "compare_type": True, "include_object": of_ours}
        context = MigrationContext.configure(connection, opts=options)
        differences = [
            difference
            for difference in compare_metadata(context, Base.metadata)
            if not str(difference[0]).endswith(("index", "constraint", "fk", "comment"))
        ]
    engine.dispose()
    assert differences == []


def test_an_agent_has_one_open_command_at_most(db: Db, agent: int) -> None:
    command(db, agent, "COMPLETE")
    command(db, agent, "COMPLETE")
    command(db, agent)
    for state in ("COMMANDED", "PROCESSING", "AWAITING_INPUT"):
        with pytest.raises(UniqueViolation, match="command_one_open"):
            command(db, agent, state)


def test_a_session_has_one_agent(db: Db, agent: int) -> None:
    with pytest.raises(UniqueViolation):
        db.execute("insert into holdfast.agent (tenant, session_id) values ('t', 's')")
    db.execute("insert into holdfast.agent (tenant, session_id) values ('another', 's')")


def test_a_turn_is_there_once(db: Db, agent: int) -> None:
    insert = (
        "insert into holdfast.turn (agent_id, command_id, number, actor, intent, source) values (%s,%s,%s,%s,%s,%s)"
    )
    one = command(db, agent)
    db.execute(insert, (agent, one, 1, "USER", "COMMAND", "prompt:1"))
    for number, source in ((2, "prompt:1"), (1, "prompt:2")):
        with pytest.raises(UniqueViolation):
            db.execute(insert, (agent, one, number, "USER", "COMMAND", source))


def test_a_command_is_complete_exactly_if_it_has_an_end(db: Db, agent: int) -> None:
    for state, end in (("COMPLETE", "null"), ("PROCESSING", "now()"), ("IDLE", "null"), ("NONSENSE", "null")):
        with pytest.raises(CheckViolation):
            db.execute(
                f"insert into holdfast.command (agent_id, state, completed_at) values (%s, %s, {end})", (agent, state)
            )


def store(
    db: Db, *, session: str = "s", identity: str | None = None, delivery: str | None = None, body: bytes = b"x"
) -> Any:
    return db.execute(
        "select event_id, number, duplicate from holdfast.store_event('t', %s, 'E', '{}', %s, %s, %s, false)",
        (session, identity, delivery, body),
    ).fetchone()


def test_events_are_numbered_by_session_without_gaps(db: Db) -> None:
    assert [store(db, session=s, identity=str(n))[1] for n in range(3) for s in "ab"] == [1, 1, 2, 2, 3, 3]


def test_the_number_follows_the_order_of_the_commits(url: str, db: Db) -> None:
    """While one has a number and has not committed, nobody else gets the next one: it would be seen without it."""
    with (  # left in the opposite order: the first lets go, then the second can end, then its thread
        ThreadPoolExecutor() as threads,
        psycopg.connect(url, autocommit=True) as second,
        psycopg.connect(url) as first,
    ):
        store(db, body=b"0")
        assert store(first, body=b"1")[1] == 2
        following = threads.submit(store, second, body=b"2")
        waits = "select from pg_locks where pid = %s and locktype = 'advisory' and not granted"
        deadline = time.monotonic() + PATIENCE
        while db.execute(waits, (second.info.backend_pid,)).fetchone() is None:
            assert time.monotonic() < deadline and not following.done()
        assert store(db, session="another")[1] == 1  # other sessions do not wait
        first.commit()
        assert following.result(PATIENCE)[1:] == (3, False)


@pytest.mark.parametrize(
    "fields", [{"identity": "Stop:1"}, {"delivery": "d1"}, {"identity": "a", "delivery": "b"}, {"body": b"same"}]
)
def test_the_same_event_is_stored_once(db: Db, fields: dict[str, Any]) -> None:
    event, number, duplicate = store(db, **fields)
    assert (number, duplicate) == (1, False)
    assert store(db, **fields) == (event, 1, True)
    assert store(db, **fields, session="another")[2] is False


def test_equal_bodies_are_one_event_for_ten_seconds_only(db: Db) -> None:
    store(db, body=b"idle")
    db.execute("update holdfast.event set received_at = received_at - interval '11 s'")
    assert store(db, body=b"idle")[1:] == (2, False)


def test_equal_bodies_that_the_shim_tells_apart_are_two_events(db: Db) -> None:
    assert store(db, delivery="1", body=b"idle")[1:] == (1, False)
    assert store(db, delivery="2", body=b"idle")[1:] == (2, False)
