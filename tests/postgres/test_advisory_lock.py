"""``advisory_lock`` and ``advisory_lock_or_skip``: the six groups of unit tests and the concurrency tests of their
first specification, under real contention on a real server."""

import asyncio
import threading
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from eyes import Server, wait_until

import holdfast
from holdfast import (
    AdvisoryLockError,
    AsyncLocks,
    InvalidOption,
    LockError,
    LockNamespace,
    Locks,
    NotAcquired,
    advisory_lock,
    advisory_lock_or_skip,
    lock_key_from_string,
)
from holdfast.testing import PATIENCE, Stopwatch

AGENT = LockNamespace.AGENT


@pytest.fixture(autouse=True)
def _configured(url: str) -> Iterator[None]:
    holdfast.configure(url)
    yield
    holdfast.configure("memory://nowhere")


class Elsewhere:
    """Another session that holds the lock of one agent."""

    def __init__(self, db: psycopg.Connection[Any], agent: int) -> None:
        self.db, self.agent = db, agent

    def __enter__(self) -> None:
        self.db.execute("select pg_advisory_lock(1, %s)", (self.agent,))

    def __exit__(self, *_: object) -> None:
        self.db.execute("select pg_advisory_unlock(1, %s)", (self.agent,))


def in_threads(*functions: Any) -> None:
    errors: list[BaseException] = []

    def run(function: Any) -> None:
        try:
            function()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
    if errors:
        raise errors[0]


class TestAcquisitionAndRelease:
    def test_the_lock_is_session_scoped_in_two_int_form_and_released_at_exit(
        self, db: psycopg.Connection[Any], server: Server
    ) -> None:
        with advisory_lock(AGENT, 42):
            row = db.execute(
                "select classid, objid, objsubid, mode from pg_locks where locktype = 'advisory'"
            ).fetchone()
            assert row == (1, 42, 2, "ExclusiveLock")
            assert db.execute("select pg_try_advisory_lock(1, 42)").fetchone() == (False,)
        assert not server.advisory_locks(42)

    def test_it_works_with_async_with(self, db: psycopg.Connection[Any], server: Server) -> None:
        async def main() -> None:
            async with advisory_lock(AGENT, 42):
                assert server.holder(42)
                async with advisory_lock_or_skip(AGENT, 43) as acquired:
                    assert acquired is True
            assert not server.advisory_locks()

        asyncio.run(main())

    def test_the_lock_connection_is_never_idle_in_transaction(
        self, db: psycopg.Connection[Any], server: Server
    ) -> None:
        with advisory_lock(AGENT, 42):
            pid = server.holder(42)
            assert db.execute("select state from pg_stat_activity where pid = %s", (pid,)).fetchone() == ("idle",)

    def test_big_ids_and_ids_from_strings_work(self, server: Server) -> None:
        for entity in (2**31, -(2**31) - 1, 2**63 - 1, lock_key_from_string("conversation 7")):
            with advisory_lock(AGENT, entity):
                assert len(server.advisory_locks()) == 1
            assert not server.advisory_locks()


class TestTimeout:
    def test_a_timeout_is_an_advisory_lock_error_at_the_deadline(self, db: psycopg.Connection[Any]) -> None:
        with Elsewhere(db, 42):
            watch = Stopwatch()
            with pytest.raises(AdvisoryLockError):
                with advisory_lock(AGENT, 42, timeout=0.3):
                    raise AssertionError("two holders")
            assert watch.elapsed >= 0.3 and watch.awake < 1

    def test_a_timeout_under_a_millisecond_is_a_short_one(self, db: psycopg.Connection[Any]) -> None:
        with advisory_lock(AGENT, 1):
            pass
        with Elsewhere(db, 42):
            watch = Stopwatch()
            with pytest.raises(AdvisoryLockError):
                with advisory_lock(AGENT, 42, 0.0001):
                    raise AssertionError("two holders")
            assert watch.awake < 1


class TestSkip:
    def test_busy_yields_false_and_raises_nothing(self, db: psycopg.Connection[Any], server: Server) -> None:
        with Elsewhere(db, 42), advisory_lock_or_skip(AGENT, 42) as acquired:
            assert acquired is False
            assert len(server.advisory_locks(42)) == 1

    def test_free_yields_true_and_holds_until_exit(self, server: Server) -> None:
        with advisory_lock_or_skip(AGENT, 42) as acquired:
            assert acquired is True
            assert server.holder(42)
        assert not server.advisory_locks(42)

    def test_a_body_error_while_not_acquired_comes_out_as_itself(self, db: psycopg.Connection[Any]) -> None:
        with Elsewhere(db, 42), pytest.raises(KeyError, match="the body's own"):
            with advisory_lock_or_skip(AGENT, 42) as acquired:
                assert not acquired
                raise KeyError("the body's own")


class TestCleanupOnExceptions:
    @pytest.mark.parametrize("block", [advisory_lock, advisory_lock_or_skip])
    def test_an_error_releases_and_propagates(self, block: Any, server: Server) -> None:
        with pytest.raises(ZeroDivisionError):
            with block(AGENT, 42):
                _ = 1 / 0
        assert not server.advisory_locks(42)


class TestNesting:
    def test_re_entry_raises_at_once_and_the_outer_lock_stays(self, server: Server) -> None:
        with advisory_lock(AGENT, 42):
            watch = Stopwatch()
            with pytest.raises(AdvisoryLockError):
                with advisory_lock(AGENT, 42):
                    raise AssertionError("two holders")
            assert watch.awake < 1
            assert server.holder(42)

    def test_re_entry_by_skip_yields_false(self, server: Server) -> None:
        with advisory_lock(AGENT, 42):
            with advisory_lock_or_skip(AGENT, 42) as acquired:
                assert acquired is False
            assert server.holder(42)

    def test_different_agents_nest(self, server: Server) -> None:
        with advisory_lock(AGENT, 42), advisory_lock(AGENT, 43):
            assert len(server.advisory_locks()) == 2


class TestConcurrency:
    def test_two_threads_on_one_lock_are_serialised(self) -> None:
        inside, most, done = 0, 0, 0

        def work() -> None:
            nonlocal inside, most, done
            for _ in range(20):
                with advisory_lock(AGENT, 42):
                    inside += 1
                    most = max(most, inside)
                    time.sleep(0.0005)
                    inside -= 1
                    done += 1

        in_threads(work, work)
        assert (most, done) == (1, 40)

    def test_two_threads_on_different_agents_are_independent(self) -> None:
        both_inside = threading.Barrier(2)

        def work(agent: int) -> None:
            with advisory_lock(AGENT, agent):
                both_inside.wait(PATIENCE)

        in_threads(lambda: work(42), lambda: work(43))

    def test_many_attempts_each_succeed_or_end_by_their_deadline(self, server: Server) -> None:
        outcomes: list[str] = []
        longest = 0.0

        def work() -> None:
            nonlocal longest
            watch = Stopwatch()
            try:
                with advisory_lock(AGENT, 42, timeout=0.5):
                    time.sleep(0.05)
                outcomes.append("held")
            except NotAcquired:
                outcomes.append("gave up")
            longest = max(longest, watch.awake)

        with advisory_lock(AGENT, 1):  # connected
            pass

        def of_both_kinds() -> bool:  # but not if the machine stands still
            outcomes.clear()
            in_threads(*[work] * 30)
            assert len(outcomes) == 30
            return {"held", "gave up"} == set(outcomes)

        wait_until(of_both_kinds, "all of them held, or all gave up")
        assert longest < 0.5 + 0.05 + 0.5
        wait_until(lambda: not server.advisory_locks(), "something was left")

    def test_an_error_in_a_body_with_intermediate_commits_releases(
        self, db: psycopg.Connection[Any], url: str, server: Server
    ) -> None:
        db.execute("create temporary table work (n int)")
        with pytest.raises(psycopg.errors.DivisionByZero):
            with advisory_lock(AGENT, 42), psycopg.connect(url) as own:
                own.execute("select 1")
                own.commit()
                assert server.holder(42)
                own.rollback()
                assert server.holder(42)
                own.execute("select 1 / 0")
        assert not server.advisory_locks(42)

    def test_an_unlock_of_what_is_not_held_harms_nobody(self, db: psycopg.Connection[Any], server: Server) -> None:
        with advisory_lock(AGENT, 42):
            assert db.execute("select pg_advisory_unlock(1, 42)").fetchone() == (False,)
            assert server.holder(42)

    def test_spawned_work_waits_and_is_no_re_entry(self) -> None:
        got = threading.Event()

        def spawned() -> None:
            with advisory_lock(AGENT, 42):
                got.set()

        with advisory_lock(AGENT, 42):
            thread = threading.Thread(target=spawned)
            thread.start()
            assert not got.wait(0.1)
        assert got.wait(PATIENCE)
        thread.join(PATIENCE)


class TestConfiguration:
    def test_a_client_can_be_given_instead(self, url: str, server: Server) -> None:
        with Locks.from_url(url) as locks, advisory_lock(AGENT, 42, locks=locks):
            assert server.holder(42)
            with pytest.raises(LockError):
                with advisory_lock(AGENT, 42):
                    raise AssertionError("re-entry across clients")

        async def wrong() -> None:
            async with advisory_lock(AGENT, 42, locks=locks):
                pass

        with pytest.raises(InvalidOption, match="goes with `with`"):
            asyncio.run(wrong())
        with pytest.raises(InvalidOption, match="goes with `async with`"):
            advisory_lock(AGENT, 42, locks=AsyncLocks.from_url(url)).__enter__()

    def test_a_function_that_connects_can_be_given(self, url: str, server: Server) -> None:
        calls = []

        def connect() -> psycopg.Connection[Any]:
            calls.append(1)
            return psycopg.connect(url, application_name="mine")

        holdfast.configure(connect)
        with advisory_lock(AGENT, 42):
            assert server.connections("mine") >= 1
        assert calls

    @pytest.mark.parametrize("kind", ["sync", "async"])
    def test_a_sqlalchemy_engine_gives_its_address_and_arguments_but_no_connection(
        self, kind: str, url: str, server: Server
    ) -> None:
        import sqlalchemy
        from sqlalchemy.ext.asyncio import create_async_engine

        sqlalchemy_url = url.replace("postgresql://", "postgresql+psycopg://")
        arguments = {"connect_args": {"application_name": "from-sqlalchemy", "prepare_threshold": 7}}
        if kind == "sync":
            engine: Any = sqlalchemy.create_engine(
                sqlalchemy_url, pool_size=1, max_overflow=0, pool_timeout=1, **arguments
            )
            pool = engine.pool
        else:
            engine = create_async_engine(sqlalchemy_url, pool_size=1, max_overflow=0, **arguments)
            pool = engine.sync_engine.pool
        holdfast.configure(engine)
        with advisory_lock(AGENT, 42):
            assert server.connections("from-sqlalchemy") >= 1
            assert pool.checkedout() == 0
            assert pool.checkedin() == 0

    def test_commits_and_rollbacks_of_flask_sqlalchemys_session_leave_the_lock_alone(
        self, url: str, server: Server
    ) -> None:
        from flask import Flask
        from flask_sqlalchemy import SQLAlchemy

        app = Flask(__name__)
        app.config["SQLALCHEMY_DATABASE_URI"] = url.replace("postgresql://", "postgresql+psycopg://")
        app.config["SQLALCHEMY_ENGINE_OPTIONS"] = {"pool_size": 1, "max_overflow": 0}
        db = SQLAlchemy(app)
        with app.app_context():
            holdfast.configure(db.engine)
            with advisory_lock(AGENT, 42):
                for _ in range(3):
                    db.session.execute(db.text("select 1"))
                    db.session.commit()
                    assert server.holder(42)
                    db.session.execute(db.text("select 1"))
                    db.session.rollback()
                    assert server.holder(42)
            assert not server.advisory_locks(42)
            db.engine.dispose()

    def test_without_configuration_it_says_what_to_do(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("holdfast.advisory._configured", None)
        with pytest.raises(LockError, match=r"holdfast\.configure"):
            advisory_lock(AGENT, 42).__enter__()

    @pytest.mark.parametrize("target", [7, None, object()])
    def test_a_target_that_is_none_of_these_is_refused(self, target: object) -> None:
        with pytest.raises(InvalidOption, match="configure"):
            holdfast.configure(target)

    def test_another_database_is_refused(self) -> None:
        import sqlalchemy

        with pytest.raises(InvalidOption, match="sqlite"):
            holdfast.configure(sqlalchemy.create_engine("sqlite://"))
