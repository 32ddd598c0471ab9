"""One row locked in the caller's own transaction: claimed, busy and missing, on every kind of connection."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any

import psycopg
import pytest
from claim_callers import KINDS, Caller, caller

from holdfast import InvalidOption, NotHeld, claim_row
from holdfast.testing import PATIENCE

ODD_TABLE = 'odd"; drop table claims_test.turns; -- %s :x $1 \\'
ODD_COLUMN = '%(id)s" = 1 or true; -- :y'


@pytest.fixture(autouse=True)
def _tables(db: psycopg.Connection[Any]) -> Iterator[None]:
    def quoted(name: str) -> psycopg.sql.Identifier:
        return psycopg.sql.Identifier(name)

    db.execute("create schema claims_test")
    db.execute("create table claims_test.turns (id int primary key, agent text, state text default 'open')")
    db.execute("create table claims_test.steps (turn int references claims_test.turns)")
    db.execute("insert into claims_test.turns values (7, 'anna'), (8, 'anna'), (9, null)")
    db.execute(
        psycopg.sql.SQL("create table claims_test.{} as select 7 as {}").format(quoted(ODD_TABLE), quoted(ODD_COLUMN))
    )
    yield
    db.execute("drop schema claims_test cascade")


@pytest.fixture(params=KINDS)
def mine(request: pytest.FixtureRequest, url: str, _tables: None) -> Iterator[Caller]:
    with caller(request.param, url) as found:
        yield found


@pytest.fixture
def other(url: str, _tables: None) -> Iterator[Caller]:
    with caller("psycopg", url) as found:
        yield found


def test_claimed_busy_and_missing_are_told_apart(mine: Caller, other: Caller) -> None:
    mine.sql("insert into claims_test.turns values (1, 'mine')")
    turn = mine.claim_row("claims_test.turns", {"id": 7})
    assert turn and turn.outcome == "claimed" and not turn.busy and not turn.missing
    assert turn.row == {"id": 7, "agent": "anna", "state": "open"}

    assert other.claim_row("claims_test.turns", {"id": 8})
    busy = mine.claim_row("claims_test.turns", {"id": 8})
    assert not busy and busy.busy and not busy.missing

    missing = mine.claim_row("claims_test.turns", {"id": 70})
    assert not missing and missing.missing and not missing.busy
    for nothing in (busy, missing):
        with pytest.raises(NotHeld, match=nothing.outcome):
            _ = nothing.row

    # The transaction is usable, what it did is there, and what it claimed is claimed still.
    mine.sql("update claims_test.turns set state = 'done' where id = 7")
    assert other.claim_row("claims_test.turns", {"id": 7}).busy
    mine.commit()
    assert other.claim_row("claims_test.turns", {"id": 7}).row["state"] == "done"
    assert other.claim_row("claims_test.turns", {"id": 1})


def test_a_row_that_is_being_deleted_is_busy_and_then_missing(mine: Caller, other: Caller) -> None:
    other.sql("delete from claims_test.turns where id = 7")
    assert mine.claim_row("claims_test.turns", {"id": 7}).busy
    other.commit()
    assert mine.claim_row("claims_test.turns", {"id": 7}).missing


def test_a_rolled_back_claim_is_over(mine: Caller, other: Caller) -> None:
    assert mine.claim_row("claims_test.turns", {"id": 7}, strength="update")
    assert other.claim_row("claims_test.turns", {"id": 7}).busy
    mine.rollback()
    assert other.claim_row("claims_test.turns", {"id": 7})


def test_by_default_others_can_refer_to_the_claimed_row(mine: Caller, db: psycopg.Connection[Any]) -> None:
    def refer() -> None:
        with db.transaction():
            db.execute("set local lock_timeout = '100ms'")
            db.execute("insert into claims_test.steps values (7)")

    assert mine.claim_row("claims_test.turns", {"id": 7})
    refer()

    mine.rollback()
    assert mine.claim_row("claims_test.turns", {"id": 7}, strength="update")
    with pytest.raises(psycopg.errors.LockNotAvailable):
        refer()


def test_a_row_found_to_be_busy_was_not_waited_for(mine: Caller, other: Caller) -> None:
    assert other.claim_row("claims_test.turns", {"id": 7})
    mine.sql("set local lock_timeout = '1ms'")  # a wait would fail by it; the setting is the caller's, and stays
    assert mine.claim_row("claims_test.turns", {"id": 7}).busy
    assert mine.value("show lock_timeout") == "1ms"


def test_names_are_quoted(mine: Caller) -> None:
    found = mine.claim_row(("claims_test", ODD_TABLE), {ODD_COLUMN: 7}, columns=[ODD_COLUMN])
    assert found.row == {ODD_COLUMN: 7}
    assert mine.claim_row(("claims_test", ODD_TABLE), {ODD_COLUMN: 8}).missing


@pytest.mark.parametrize(
    ("table", "where", "columns"),
    [
        ('claims_test.turns"; drop schema claims_test cascade; --', {"id": 7}, "*"),
        ("claims_test.turns; drop table claims_test", {"id": 7}, "*"),
        ("claims_test.turns", {'id" = 7 or true; drop table claims_test.turns; --': 7}, "*"),
        ("claims_test.turns", {"id": 7}, "* from claims_test.turns; drop table claims_test.turns; --"),
        ("claims_test.turns", {"id": 7}, ["id", '1" from pg_class; drop table claims_test.turns; --']),
    ],
)
def test_names_made_to_break_out_name_nothing(mine: Caller, table: Any, where: Any, columns: Any) -> None:
    with pytest.raises(Exception, match="does not exist"):
        mine.claim_row(table, where, columns=columns)
    assert mine.value("select count(*) from claims_test.turns") == 3, "the table is there and the transaction usable"


def test_values_are_parameters(mine: Caller) -> None:
    assert mine.claim_row("claims_test.turns", {"agent": "' or true; drop table claims_test.turns; --"}).missing
    assert mine.claim_row("claims_test.turns", {"agent": None}).row["id"] == 9
    assert mine.claim_row("claims_test.turns", {"agent": "anna", "id": 8}, columns="id").row == {"id": 8}


def test_names_are_taken_as_they_are(mine: Caller) -> None:
    mine.sql("set local search_path = claims_test")
    assert mine.claim_row("turns", {"id": 7})
    with pytest.raises(Exception, match="does not exist"):
        mine.claim_row("Turns", {"id": 7})


def test_more_than_one_row_is_refused_and_none_is_locked(mine: Caller, other: Caller) -> None:
    with pytest.raises(InvalidOption, match=r"where: .*more than one row"):
        mine.claim_row("claims_test.turns", {"agent": "anna"})
    assert other.claim_row("claims_test.turns", {"id": 7}) and other.claim_row("claims_test.turns", {"id": 8})
    assert mine.value("select 1") == 1


def test_of_many_at_once_one_claims_and_the_others_are_told(url: str, db: psycopg.Connection[Any]) -> None:
    with ThreadPoolExecutor(len(KINDS)) as pool:
        start, end = Barrier(len(KINDS)), Barrier(len(KINDS))

        def compete(kind: str) -> str:
            with caller(kind, url) as who:
                who.value("select 1")
                start.wait(PATIENCE)
                outcome = who.claim_row("claims_test.turns", {"id": 7}).outcome
                end.wait(PATIENCE)
                return outcome

        assert sorted(pool.map(compete, KINDS)) == ["busy"] * (len(KINDS) - 1) + ["claimed"]


@pytest.mark.parametrize(
    ("option", "arguments"),
    [
        ("strength", {"strength": "share"}),
        ("strength", {"strength": "update skip locked; drop table claims_test.turns"}),
        ("where", {"where": {}}),
        ("where", {"where": "id = 7"}),
        ("where", {"where": {1: 7}}),
        ("where", {"where": {"i\0d": 7}}),
        ("columns", {"columns": []}),
        ("columns", {"columns": 3}),
        ("columns", {"columns": [""]}),
        ("table", {"table": ""}),
        ("table", {"table": "a.b.c"}),
        ("table", {"table": "a."}),
        ("table", {"table": ()}),
        ("table", {"table": None}),
        ("table", {"table": "\ud800"}),
    ],
)
def test_bad_input_is_named(url: str, option: str, arguments: dict[str, Any]) -> None:
    with psycopg.connect(url) as conn:
        with pytest.raises(InvalidOption, match=option):
            claim_row(conn, **{"table": "claims_test.turns", "where": {"id": 7}, **arguments})
        assert conn.info.transaction_status == psycopg.pq.TransactionStatus.IDLE, "nothing was sent"


def test_no_savepoint_is_left_behind(mine: Caller, other: Caller) -> None:
    assert other.claim_row("claims_test.turns", {"id": 7})
    assert mine.claim_row("claims_test.turns", {"id": 7}).busy
    assert mine.claim_row("claims_test.turns", {"id": 8})
    with pytest.raises(Exception, match="does not exist"):
        mine.sql("release savepoint holdfast_claim")
