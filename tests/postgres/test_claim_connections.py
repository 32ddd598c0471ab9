"""Which connections carry a claim, which are refused and why, and that their own settings do not get in the way."""

from collections.abc import Iterator
from math import inf, nan
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy
from claim_callers import ASYNC_KINDS, KINDS, caller
from psycopg.rows import dict_row, scalar_row
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from holdfast import BackendUnavailable, InvalidKey, InvalidOption, Unsupported, claim, claim_row
from holdfast.embedded import start_postgres


@pytest.fixture
def conn(url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(url) as connection:
        yield connection
        connection.rollback()


def sqlalchemy_engine(url: str, **options: Any) -> sqlalchemy.Engine:
    return sqlalchemy.create_engine(url.replace("postgresql://", "postgresql+psycopg://"), **options)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "asyncpg"])
def test_a_failed_transaction_is_refused(kind: str, url: str) -> None:
    with caller(kind, url) as mine:
        with pytest.raises(Exception, match="division by zero"):
            mine.sql("select 1 / 0")
        with pytest.raises(Unsupported, match="failed: roll it back first"):
            mine.claim("report")
        with pytest.raises(Unsupported, match="failed: roll it back first"):
            mine.claim_row("pg_class", {"relname": "pg_class"})
        mine.rollback()
        assert mine.claim("report")


def test_pipeline_mode_is_refused(conn: psycopg.Connection[Any]) -> None:
    with conn.pipeline():
        with pytest.raises(Unsupported, match="pipeline"):
            claim(conn, "report")
    assert claim(conn, "report")


def test_a_connection_in_the_middle_of_a_statement_is_refused(conn: psycopg.Connection[Any]) -> None:
    rows = conn.cursor().stream("select generate_series(1, 10)")
    next(rows)
    with pytest.raises(Unsupported, match="busy with another statement"):
        claim(conn, "report")
    rows.close()
    conn.rollback()
    assert claim(conn, "report")


def test_a_closed_connection_is_refused(url: str) -> None:
    conn = psycopg.connect(url)
    conn.close()
    with pytest.raises(BackendUnavailable, match="closed"):
        claim(conn, "report")


def test_a_server_of_another_kind_is_refused() -> None:
    engine = sqlalchemy.create_engine("sqlite://")
    with engine.connect() as conn:
        with pytest.raises(Unsupported, match="sqlite"):
            claim(conn, "report")
    engine.dispose()


def test_a_standby_is_refused(tmp_path: Path) -> None:
    with start_postgres(tmp_path, options={"fsync": "off"}):
        pass
    (tmp_path / "postgres" / "cluster" / "standby.signal").touch()
    with start_postgres(tmp_path, options={"fsync": "off"}) as server:
        with psycopg.connect(server.url) as conn:
            with pytest.raises(Unsupported, match="standby"):
                claim(conn, "report")


@pytest.mark.parametrize("nothing", [None, "postgresql://u:secret@host/db", object()])
def test_what_is_no_connection_is_refused(nothing: Any) -> None:
    for call in (lambda: claim(nothing, "report"), lambda: claim_row(nothing, "turns", {"id": 7})):
        with pytest.raises(InvalidOption, match="conn is a ") as caught:
            call()
        assert "secret" not in str(caught.value)


@pytest.mark.parametrize("wait", [None, inf, nan, -1, True, "1", 2_147_484])
def test_a_wait_is_a_bounded_number_of_seconds(conn: psycopg.Connection[Any], wait: Any) -> None:
    with pytest.raises(InvalidOption, match="wait="):
        claim(conn, "report", wait=wait)


def test_keys_and_spaces_are_checked(conn: psycopg.Connection[Any]) -> None:
    for key in ((), ("",), (1,), (1, "2"), (1, 2, 3), (2**31, 1)):
        with pytest.raises(InvalidKey):
            claim(conn, *key)
    with pytest.raises(InvalidOption, match="space="):
        claim(conn, "report", space=1)  # type: ignore[call-overload]
    assert conn.info.transaction_status == psycopg.pq.TransactionStatus.IDLE


@pytest.mark.parametrize("kind", ASYNC_KINDS)
def test_an_await_left_out_does_not_look_claimed(kind: str, url: str) -> None:
    with caller(kind, url) as mine:
        with pytest.raises(TypeError, match="awaited"):
            bool(claim(mine.conn, "report"))
        with pytest.raises(TypeError, match="awaited"):
            bool(claim_row(mine.conn, "pg_class", {"relname": "pg_class"}))


@pytest.mark.parametrize("cursor", [psycopg.ClientCursor, psycopg.RawCursor])
@pytest.mark.parametrize("rows", [dict_row, scalar_row])
def test_the_callers_choice_of_cursor_and_rows_does_not_matter(url: str, cursor: Any, rows: Any) -> None:
    with psycopg.connect(url, cursor_factory=cursor, row_factory=rows) as conn:
        assert claim(conn, -(2**31), -(2**31))
        assert claim_row(conn, "pg_class", {"relname": "pg_class"}, columns="relname").missing is False


@pytest.mark.parametrize("options", [{"stream_results": True}, {"yield_per": 1}])
def test_a_connection_that_streams_carries_claims(url: str, options: dict[str, Any]) -> None:
    engine = sqlalchemy_engine(url)
    with psycopg.connect(url) as other, engine.connect() as conn:
        conn.execute(sqlalchemy.text("create temp table turns as select 7 as id"))
        conn.execution_options(**options)
        assert claim_row(conn, "turns", {"id": 7}).row == {"id": 7}
        assert claim(other, "report")
        with pytest.raises(TimeoutError):
            claim(conn, "report", wait=0.02)
        assert conn.execute(sqlalchemy.text("select 1")).scalar() == 1
    engine.dispose()


def test_a_sessions_claim_neither_flushes_nor_forgets_its_objects(url: str) -> None:
    engine = sqlalchemy_engine(url)
    metadata = sqlalchemy.MetaData()
    registry = sqlalchemy.orm.registry(metadata=metadata)
    table = sqlalchemy.Table(
        "claimed_turns", metadata, sqlalchemy.Column("id", sqlalchemy.Integer, primary_key=True), prefixes=["temporary"]
    )

    class Turn:
        id: int

    registry.map_imperatively(Turn, table)
    with Session(engine) as session, psycopg.connect(url) as other:
        metadata.create_all(session.connection())
        turn = Turn()
        turn.id = 7
        session.add(turn)
        assert claim(other, "report")
        assert claim(session, "report") is False
        with pytest.raises(TimeoutError):
            claim(session, "report", wait=0.02)
        assert turn in session.new
        session.flush()
        assert claim_row(session, "claimed_turns", {"id": 7})
        assert session.get(Turn, 7) is turn
    engine.dispose()


def test_a_scoped_session_is_the_session_in_it(url: str) -> None:
    engine = sqlalchemy_engine(url)
    sessions = scoped_session(sessionmaker(engine))
    with psycopg.connect(url) as other:
        assert claim(sessions, "report")
        assert claim(other, "report") is False
        sessions.commit()
        assert claim(other, "report") is True
    sessions.remove()
    engine.dispose()
