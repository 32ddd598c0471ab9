"""Limits that the server or its roles set: a lock outlives them, and what the server cannot give is told and undone."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from eyes import Server, wait_until
from pg_duty import take_duty

from holdfast import BackendUnavailable, Locks
from holdfast.testing import PATIENCE, Child, Stopwatch

TIMEOUTS = ("idle_session_timeout", "idle_in_transaction_session_timeout", "statement_timeout", "lock_timeout")


@pytest.fixture
def admin(own_server: Any) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(own_server.url, autocommit=True) as connection:
        yield connection


@pytest.mark.parametrize("where", ["role", "database"])
def test_a_lock_outlives_the_timeouts_of_its_role_and_database(
    own_server: Any, admin: psycopg.Connection[Any], where: str
) -> None:
    """And so does a wait: 150 ms for all of them, held and waited for three times as long."""
    held_for = 0.45
    admin.execute("create role limited login")
    for name in TIMEOUTS:
        admin.execute(f"alter {'role limited' if where == 'role' else 'database postgres'} set {name} = '150ms'")
    for name in TIMEOUTS:
        admin.execute(f"set {name} = 0")
    address = own_server.url.replace("postgres@", "limited@")
    told = threading.Event()
    with psycopg.connect(address, autocommit=True) as probe:  # the timeouts are in force for others
        time.sleep(0.3)
        with pytest.raises(psycopg.OperationalError):
            probe.execute("select 1")
    with Locks.from_url(address) as locks:

        def connected() -> bool:
            try:
                with locks.hold(9, 3, wait=PATIENCE):
                    return True
            except BackendUnavailable:  # it took more than 150 ms to where they are switched off
                return False

        wait_until(connected, "the timeouts are in force for the client, too")
        with locks.hold(9, 1, on_lost=lambda held: told.set()) as held:
            got = threading.Event()

            def wait() -> None:
                with locks.hold(9, 2, wait=PATIENCE):
                    got.set()

            admin.execute("select pg_advisory_lock(9, 2)")
            waiter = threading.Thread(target=wait)
            waiter.start()
            eyes = Server(admin)
            wait_until(lambda: eyes.waiting(2), "nobody stood in the server's queue")
            (backend,) = eyes.waiting(2)
            assert not told.wait(held_for)
            held.check()
            assert eyes.waiting(2) == [backend], "the wait was broken off"
            assert eyes.holder(1)
            admin.execute("select pg_advisory_unlock(9, 2)")
            assert got.wait(PATIENCE)
            waiter.join(PATIENCE)


SMALL = {"max_locks_per_transaction": "10", "max_connections": "20", "max_prepared_transactions": "0"}


@pytest.mark.parametrize("own_server", [SMALL], indirect=True)
def test_a_full_lock_table_is_told_undone_and_gets_better(own_server: Any, admin: psycopg.Connection[Any]) -> None:
    eyes = Server(admin)
    child = Child(own_server.url)
    try:
        assert child.ask("hold", "of-another").startswith("held")
        others = eyes.advisory_locks()
        with Locks.from_url(own_server.url) as locks:
            with locks.hold(9, 1) as mine:
                handles, error = fill(locks)
                assert "lock table is full" in str(error) and "max_locks_per_transaction" in str(error)
                for _ in range(15):
                    handles.pop().release()
                # A batch for which there is not enough room: each key is got or told, and none is left over.
                outcomes = ask_together(locks, range(100_000, 100_040))
                failed = {key for key, outcome in outcomes.items() if isinstance(outcome, BackendUnavailable)}
                assert failed, "the table was not full"
                got = {key for key, outcome in outcomes.items() if not isinstance(outcome, BaseException)}
                assert failed | got == set(outcomes)
                rows = {row[0] for row in admin.execute(OBJIDS, (100_000, 100_039))}
                assert rows == got, "the server holds other keys than those that were granted"
                mine.check()
                for held in (*handles, *(outcomes[key] for key in got)):
                    held.check()
                    held.release()
                # A key that was granted in the failed batch, and again by itself, would need two releases.
                assert not admin.execute(OBJIDS, (100_000, 100_039)).fetchall(), "the failed batch was not undone"
                assert set(others) < set(eyes.advisory_locks())
                for key in sorted(failed)[:20]:
                    with locks.hold(9, key, wait=PATIENCE):
                        pass
                mine.check()
        assert eyes.advisory_locks() == others
    finally:
        child.kill()


OBJIDS = "select objid::int8 from pg_locks where locktype = 'advisory' and granted and objid between %s and %s"


def fill(locks: Locks) -> tuple[list[Any], BackendUnavailable]:
    """Takes locks until the server has no room for another."""
    handles = []
    for number in range(10_000, 60_000):
        watch = Stopwatch()
        try:
            handles.append(locks.hold(9, number, wait=PATIENCE).__enter__())
        except BackendUnavailable as error:
            assert watch.awake < 2
            return handles, error
    raise AssertionError("the lock table has no end")


def ask_together(locks: Locks, keys: range) -> dict[int, Any]:
    """Many threads ask at once, so that their keys go to the server in one statement."""
    outcomes: dict[int, Any] = {}
    hub = locks._client.engine._hub  # type: ignore[attr-defined]

    def ask(key: int) -> None:
        try:
            outcomes[key] = locks.hold(9, key, wait=PATIENCE).__enter__()
        except BaseException as error:
            outcomes[key] = error

    threads = [threading.Thread(target=ask, args=(key,)) for key in keys]
    # With somebody at work on the connection, all of them queue up behind it.
    (connection,) = hub.shared
    take_duty(connection)
    for thread in threads:
        thread.start()
    wait_until(lambda: len(connection.pending) == len(keys), "not everybody has asked")
    hub.drive_soon(connection)
    for thread in threads:
        thread.join(PATIENCE)
    return outcomes


@pytest.mark.parametrize("own_server", [{"max_connections": "8", "superuser_reserved_connections": "1"}], indirect=True)
def test_a_server_without_connections_left(own_server: Any, admin: psycopg.Connection[Any]) -> None:
    """A new client is told in time; who holds keeps; who waits is tried together with others, and gets its lock."""
    admin.execute("create role plain login")
    address = own_server.url.replace("postgres@", "plain@")
    eyes = Server(admin)
    with Locks.from_url(address) as locks:
        with locks.hold(9, 1) as held:
            crowd = occupy(address, 8 - 1 - 2)  # the reserved one, and those of the admin and the holder
            try:
                with Locks.from_url(address, max_waiting=3) as late:
                    watch = Stopwatch()
                    with pytest.raises(BackendUnavailable, match=r"connection slots|too many clients"):
                        late.hold(9, 2, wait=3).__enter__()
                    assert watch.awake < 3
                held.check()
                admin.execute("select pg_advisory_lock(9, 3)")
                watch = Stopwatch()
                got: list[float] = []

                def wait() -> None:
                    with locks.hold(9, 3, wait=PATIENCE):
                        got.append(watch.awake)

                waiter = threading.Thread(target=wait)
                waiter.start()
                hub = locks._client.engine._hub  # type: ignore[attr-defined]
                wait_until(lambda: hub.opener._not_before, "no waiting connection was asked for")
                assert not eyes.waiting(3) and not got
                watch, attempts = Stopwatch(), count_attempts(own_server)
                time.sleep(0.5)
                attempts = count_attempts(own_server) - attempts
                assert attempts <= 2 + int(watch.elapsed), "a full server is stormed with connections"
                watch.restart()
                admin.execute("select pg_advisory_unlock(9, 3)")
                waiter.join(PATIENCE)
                print(f"got by trying after {got[0]:.3f} s")
                assert got[0] < 0.5
                held.check()
            finally:
                for connection in crowd:
                    connection.close()


def occupy(address: str, left: int) -> list[psycopg.Connection[Any]]:
    """Takes every connection that the server has left for ordinary roles: also those that others have just closed."""
    crowd: list[psycopg.Connection[Any]] = []

    def full() -> bool:
        try:
            crowd.append(psycopg.connect(address, autocommit=True))
        except psycopg.OperationalError:
            return len(crowd) == left
        return False

    wait_until(full, "it has not as many as it should have")
    return crowd


def count_attempts(own_server: Any) -> int:
    """How often the server refused a connection, from its log."""
    log = "".join(path.read_text(errors="replace") for path in (own_server.data_dir / "postgres").glob("*log*"))
    return log.count("connection slots") + log.count("too many clients")
