"""Locks of the caller's own transaction, on every kind of connection, against real other transactions."""

import asyncio
import os
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
import sqlalchemy
from claim_callers import ASYNC_KINDS, KINDS, Caller, caller
from eyes import Server, wait_until
from psycopg import waiting

from holdfast import (
    Key,
    LockError,
    Locks,
    NotAcquired,
    Unsupported,
    WouldDeadlock,
    claim,
)
from holdfast.claims.advisory import _waiting
from holdfast.testing import PATIENCE, Stopwatch


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def mine(kind: str, url: str) -> Iterator[Caller]:
    with caller(kind, url) as found:
        yield found


@pytest.fixture
def other(url: str) -> Iterator[Caller]:
    with caller("psycopg", url) as found:
        yield found


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(len(KINDS)) as found:
        yield found


def waits(pool: ThreadPoolExecutor, server: Server, who: Caller, *key: Any, wait: float = PATIENCE) -> Future[bool]:
    """``who`` stands in the server's queue for the key."""
    before = sum(not granted for _, granted in server.advisory_locks())
    outcome = pool.submit(who.claim, *key, wait=wait)

    def stands() -> bool:
        nonlocal outcome
        if outcome.done() and isinstance(outcome.exception(), NotAcquired):  # the machine stood still for all of it
            outcome = pool.submit(who.claim, *key, wait=wait)
        return sum(not granted for _, granted in server.advisory_locks()) > before

    wait_until(stands, "nobody waits")
    return outcome


@pytest.mark.parametrize("ending", ["commit", "rollback"])
def test_a_claim_lasts_to_the_end_of_the_transaction(mine: Caller, other: Caller, ending: str) -> None:
    assert mine.claim("report") is True
    assert mine.claim("report") is True, "it is this transaction's already"
    assert other.claim("report") is False
    assert other.claim("another report") is True
    getattr(mine, ending)()
    assert other.claim("report") is True
    assert mine.claim("report") is False


FORMS = [
    pytest.param((1, 42), {}, (1, 42, 2), id="pair"),
    pytest.param((-(2**31), -5), {}, (2**31, 2**32 - 5, 2), id="negative pair"),
    pytest.param(("report",), {}, None, id="string"),
    pytest.param((1, 2**40), {}, None, id="large id"),
    pytest.param((1, 42), {"space": "staging"}, None, id="space"),
]


@pytest.mark.parametrize(("key", "options", "seen"), FORMS)
def test_a_claim_is_the_lock_that_a_client_holds(
    mine: Caller, url: str, db: psycopg.Connection[Any], key: Any, options: Any, seen: Any
) -> None:
    if seen is None:
        number = Key.of(*key, **options).pg.objid % 2**64
        seen = (number >> 32, number % 2**32, 1)
    with Locks.from_url(url, **options) as locks:
        assert mine.claim(*key, **options)
        rows = db.execute(
            "select classid::int8, objid::int8, objsubid from pg_locks "
            "where locktype = 'advisory' and not (classid = 97 and objsubid = 2)"  # mailboxes of the lease table
        )
        assert rows.fetchall() == [seen]
        with locks.try_hold(*key) as held:
            assert held is None
        mine.rollback()
        with locks.hold(*key):
            assert mine.claim(*key, **options) is False
            with pytest.raises(NotAcquired):
                mine.claim(*key, wait=0.05, **options)
        assert mine.claim(*key, **options)


@pytest.mark.parametrize("wait", [0, 1])
def test_outside_a_transaction_nothing_is_sent(
    kind: str, url: str, db: psycopg.Connection[Any], server: Server, wait: float
) -> None:
    with caller(kind, url, autocommit=True) as mine:
        backend = mine.value("select pg_backend_pid()")

        def last_statement() -> object:
            return db.execute("select query from pg_stat_activity where pid = %s", (backend,)).fetchone()

        before = last_statement()
        with pytest.raises(Unsupported, match=r"would end at once.*open a transaction first"):
            mine.claim("report", wait=wait)
        with pytest.raises(Unsupported, match=r"would end at once.*open a transaction first"):
            mine.claim_row("pg_class", {"relname": "pg_class"})
        assert last_statement() == before


def test_autocommit_is_no_hindrance_inside_a_transaction(url: str, other: Caller) -> None:
    with psycopg.connect(url, autocommit=True) as conn:
        with conn.transaction():
            assert claim(conn, "report")
            assert other.claim("report") is False
        assert other.claim("report")


def test_autocommit_by_an_execution_option_is_seen(url: str) -> None:
    engine = sqlalchemy.create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as conn:
        conn.begin()  # one that SQLAlchemy keeps to itself
        with pytest.raises(Unsupported, match="would end at once"):
            claim(conn, "report")
    engine.dispose()


@pytest.mark.parametrize("setting", ["set", "set local"])
def test_a_wait_ends_when_the_other_commits(
    mine: Caller, other: Caller, server: Server, pool: ThreadPoolExecutor, setting: str
) -> None:
    assert other.claim("report")
    mine.sql(f"{setting} lock_timeout = '1234ms'")
    claimed = waits(pool, server, mine, "report")
    other.commit()
    assert claimed.result(PATIENCE) is True
    assert mine.value("show lock_timeout") == "1234ms"
    assert other.claim("report") is False
    mine.commit()
    assert other.claim("report") is True
    assert mine.value("show lock_timeout") == ("1234ms" if setting == "set" else "0")


def test_a_wait_that_times_out_leaves_the_transaction_usable(mine: Caller, other: Caller) -> None:
    assert other.claim("report")
    mine.sql("create temp table work (done int)")
    mine.sql("insert into work values (1)")
    mine.sql("set local lock_timeout = '1234ms'")
    watch = Stopwatch()
    with pytest.raises(NotAcquired, match=r"key:report was busy for all of the 0.2 s") as caught:
        mine.claim("report", wait=0.2)
    assert watch.elapsed >= 0.2 and watch.awake < 1.0
    assert caught.value.key == Key.of("report")
    assert mine.value("show lock_timeout") == "1234ms"
    mine.sql("insert into work values (2)")
    mine.commit()
    assert mine.sql("select done from work order by done") == [(1,), (2,)]


def test_a_tiny_wait_is_not_one_for_ever(mine: Caller, other: Caller) -> None:
    assert other.claim("report")
    mine.sql("set statement_timeout = '5s'")
    watch = Stopwatch()
    with pytest.raises(NotAcquired):
        mine.claim("report", wait=0.0001)
    assert watch.awake < 1
    assert next(_waiting("", (), 0.0001, "0")).parameters == ("1",)  # 0 would be no limit


def test_a_claim_ends_with_the_callers_own_savepoint(
    mine: Caller, other: Caller, server: Server, pool: ThreadPoolExecutor
) -> None:
    assert other.claim("waited for")
    mine.sql("savepoint sp")
    assert mine.claim("tried")
    claimed = waits(pool, server, mine, "waited for")
    other.commit()
    assert claimed.result(PATIENCE)
    mine.sql("rollback to savepoint sp")
    assert other.claim("tried") and other.claim("waited for")


def test_one_at_a_time_reads_and_writes(url: str, db: psycopg.Connection[Any], pool: ThreadPoolExecutor) -> None:
    db.execute("create table tally (n int)")
    db.execute("insert into tally values (0)")
    start = threading.Barrier(len(KINDS))

    def count(kind: str) -> None:
        with caller(kind, url) as who:
            start.wait(PATIENCE)
            for _ in range(5):
                assert who.claim("tally", wait=PATIENCE)
                seen = who.value("select n from tally")
                who.sql(f"update tally set n = {seen + 1}")
                who.commit()

    list(pool.map(count, KINDS))
    assert db.execute("select n from tally").fetchone() == (5 * len(KINDS),)
    db.execute("drop table tally")


def test_a_deadlock_is_told_and_the_transaction_can_still_be_used(
    mine: Caller, other: Caller, server: Server, pool: ThreadPoolExecutor
) -> None:
    mine.sql("set deadlock_timeout = '10ms'")  # whoever looks first is the one who gives in
    other.sql("set deadlock_timeout = '60s'")
    assert mine.claim("a") and other.claim("b")
    theirs = waits(pool, server, other, "a")
    with pytest.raises(WouldDeadlock, match="key:b"):
        mine.claim("b", wait=PATIENCE)
    assert mine.value("select 1") == 1
    mine.rollback()
    assert theirs.result(PATIENCE) is True


def test_the_callers_statement_timeout_counts_in_a_wait(mine: Caller, other: Caller) -> None:
    assert other.claim("report")
    mine.sql("set local statement_timeout = '500ms'")
    with pytest.raises(Exception, match="statement timeout") as caught:
        mine.claim("report", wait=PATIENCE)
    assert not isinstance(caught.value, LockError)
    assert mine.value("show lock_timeout") == "0"


@pytest.mark.parametrize("kind", ["psycopg"])
def test_a_timeout_after_the_grant_leaves_no_lock_behind(
    mine: Caller, other: Caller, server: Server, db: psycopg.Connection[Any], pool: ThreadPoolExecutor
) -> None:
    """PostgreSQL's bug 17686, which locks of a transaction do not have."""
    assert other.claim("report")
    backend = mine.value("select pg_backend_pid()")
    claimed = waits(pool, server, mine, "report", wait=2)  # time to be seen in the queue
    try:
        os.kill(backend, signal.SIGSTOP)
        other.commit()
        time.sleep(2.1)  # the server has no other way to show that the time is over
    finally:
        os.kill(backend, signal.SIGCONT)
    assert isinstance(claimed.exception(PATIENCE), NotAcquired)
    assert server.advisory_locks() == []
    assert mine.value("select 1") == 1


@pytest.mark.parametrize("kind", ASYNC_KINDS)
def test_a_task_cancelled_in_its_wait_leaves_nothing_locked(
    kind: str, mine: Caller, other: Caller, server: Server
) -> None:
    assert other.claim("report")
    mine.sql("create temp table work (done int)")

    async def main() -> None:
        async def claiming() -> bool:
            return await claim(mine.conn, "report", wait=PATIENCE)

        task = asyncio.create_task(claiming())
        await asyncio.to_thread(wait_until, lambda: len(server.advisory_locks()) == 2, "nobody waits")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    mine.now(main())
    wait_until(lambda: len(server.advisory_locks()) == 1, "somebody waits or holds")
    if kind == "psycopg-async":  # SQLAlchemy throws the connection of a cancelled task away
        assert mine.sql("select * from work") == []
        assert mine.value("show lock_timeout") == "0"


def test_ctrl_c_in_a_wait_keeps_the_transaction(url: str, other: Caller, server: Server) -> None:
    assert other.claim("report")
    with caller("psycopg", url) as mine:
        mine.sql("create temp table work (done int)")

        def interrupt() -> None:
            wait_until(lambda: len(server.advisory_locks()) == 2, "nobody waits")
            os.kill(os.getpid(), signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            mine.claim("report", wait=PATIENCE)
        thread.join(PATIENCE)
        assert mine.sql("select * from work") == []
        assert len(server.advisory_locks()) == 1


class StruckAt(psycopg.Connection[Any]):
    """Ctrl-C strikes it amid its ``n``-th statement from now: sent, and not waited for by the driver yet."""

    n = -1

    def wait(self, gen: Any, *more: Any, **options: Any) -> Any:
        self.n -= 1
        if self.n != -1:
            return super().wait(gen, *more, **options)
        ready = gen.send(None)
        while ready != waiting.Wait.R:
            ready = gen.send(waiting.Ready.W)
        gen.close()
        raise KeyboardInterrupt


def test_ctrl_c_amid_any_statement_of_a_claim_keeps_the_transaction(url: str, other: Caller, server: Server) -> None:
    assert other.claim("report")
    for statements in range(20):
        with StruckAt.connect(url) as mine:
            mine.execute("create temp table work (done int)")
            mine.n = statements
            try:
                claim(mine, "report", wait=0.3)
            except KeyboardInterrupt:
                assert mine.execute("select * from work").fetchall() == []
                assert len(server.advisory_locks()) == 1
            except NotAcquired:
                mine.n = -1
                break
    assert statements > 3
