"""Leases in a table: what the contract cannot see, because it knows no server to restart, to stop or to look into."""

import asyncio
import gc
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import patient_leases
import psycopg
import pytest
from eyes import Server, wait_until
from pg_duty import take_duty
from psycopg.conninfo import make_conninfo

from addresses import with_option
from holdfast import AsyncLocks, BackendUnavailable, InvalidOption, LockLost, Locks, NotHeld, schema
from holdfast.embedded import start_postgres
from holdfast.engines.lease.house import House
from holdfast.engines.postgres.lease import backend
from holdfast.testing import PATIENCE, Child, Stopwatch

WAITERS = """
import sys, threading
from holdfast import Locks
from holdfast.engines.postgres.lease import backend
backend.WINDOW = 30  # nobody is passed over because the machine stood still
url, key, path, number = sys.argv[1:]
locks = Locks.from_url(url)
for line in sys.stdin:  # one waiter for each line, in the order of the lines
    def wait(name=line):
        with locks.hold(key, wait=60):
            with open(path, "a") as file:
                file.write(name)
    threading.Thread(target=wait).start()
"""


@pytest.fixture
def leases(url: str) -> str:
    schema.upgrade(url)
    return leases_at(url)


def leases_at(url: str) -> str:
    return with_option(url, "mode=lease")


@pytest.fixture
def key() -> str:
    return uuid4().hex


@pytest.fixture
def rows(db: psycopg.Connection[Any], key: str) -> Callable[[], tuple[int, int]]:
    """How many leases and waiters of the key the tables have."""

    def count() -> tuple[int, int]:
        row = db.execute(
            "select (select count(*) from holdfast.lease where name = %(name)s),"
            " (select count(*) from holdfast.lease_waiter where name = %(name)s)",
            {"name": f"key:{key}"},
        ).fetchone()
        assert row is not None
        return (int(row[0]), int(row[1]))

    return count


LONG = 60.0
"""Seconds: longer than a test lasts, even on a machine that stands still."""


@pytest.fixture
def children(leases: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Child]]:
    """The second one's offers last, too."""
    monkeypatch.setenv(patient_leases.URL, leases)
    started = [Child(leases, ttl=LONG), Child("patient_leases:engine", ttl=LONG)]
    yield started
    for child in started:
        child.go_on()
        child.kill()


def test_missing_tables_are_said_with_what_to_do(url: str, db: psycopg.Connection[Any]) -> None:
    name = f"empty_{uuid4().hex}"
    db.execute(f"create database {name}")
    try:
        empty = make_conninfo(url, dbname=name)
        host = make_conninfo(url).partition("host=")[2].split()[0]
        with pytest.raises(BackendUnavailable, match="holdfast db upgrade"):
            Locks.from_url(f"postgresql://postgres@/{name}?host={host}&mode=lease").hold("k").__enter__()
        assert not schema.standing(empty).up_to_date
    finally:
        db.execute(f"drop database {name} with (force)")


def test_the_mode_is_an_option_too_and_a_wrong_one_is_refused(url: str, leases: str) -> None:
    with Locks.from_url(url, mode="lease") as locks:
        assert locks.capabilities.expiring
    with pytest.raises(InvalidOption, match="mode"):
        Locks.from_url(url, mode="leese")
    with pytest.raises(InvalidOption, match="max_waiting"):
        Locks.from_url(leases, max_waiting=3)


def test_a_free_lock_leaves_no_row(leases: str, key: str, rows: Callable[[], tuple[int, int]]) -> None:
    with Locks.from_url(leases) as locks:
        with locks.hold(key):
            assert rows() == (1, 0)
        assert rows() == (0, 0)


def test_three_hundred_cancelled_waiters_leave_no_row(
    leases: str, key: str, rows: Callable[[], tuple[int, int]]
) -> None:
    async def main() -> None:
        async with AsyncLocks.from_url(leases) as locks:
            async with locks.hold(key):
                waiters = [asyncio.create_task(locks.hold(key).__aenter__()) for _ in range(300)]
                await asyncio.to_thread(wait_until, lambda: rows()[1] == 300, "not all wait")
                for waiter in waiters:
                    waiter.cancel()
                outcomes = await asyncio.gather(*waiters, return_exceptions=True)
                assert all(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes)
            wait_until(lambda: rows() == (0, 0), "a row was left behind")

    asyncio.run(main())


def test_waiters_of_four_processes_are_served_in_the_order_of_their_arrival(
    leases: str, key: str, rows: Callable[[], tuple[int, int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "WINDOW", 30)  # here, too
    served = tmp_path / "served"
    command = [sys.executable, "-c", WAITERS, leases, key, str(served)]
    processes = [subprocess.Popen([*command, str(n)], stdin=subprocess.PIPE, text=True) for n in range(4)]
    with Locks.from_url(leases) as locks:
        with locks.hold(key):
            for number in range(32):
                stdin = processes[number % 4].stdin
                assert stdin is not None
                stdin.write(f"{number}\n")
                stdin.flush()
                wait_until(lambda n=number: rows() == (1, n + 1), "a waiter did not come")  # type: ignore[misc]
        for process in processes:
            process.communicate(timeout=PATIENCE)
            assert process.returncode == 0
    assert served.read_text().split() == [str(number) for number in range(32)]


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_a_dead_waiter_at_the_head_of_the_queue_costs_a_window_at_most(
    how: str,
    leases: str,
    key: str,
    children: list[Child],
    rows: Callable[[], tuple[int, int]],
    db: psycopg.Connection[Any],
) -> None:
    def listens() -> bool:
        found = db.execute(
            "select from pg_locks join holdfast.lease_waiter on objid::int8 = mailbox and classid = 97"
            " where locktype = 'advisory' and name = %s",
            (f"key:{key}",),
        ).fetchall()
        return len(found) == 2

    first, second = children
    with Locks.from_url(leases) as locks:
        with locks.hold(key):
            for number, child in enumerate(children):
                child.send("hold", key)
                wait_until(lambda n=number: rows() == (1, n + 1), "a waiter did not come")  # type: ignore[misc]
            if how == "killed":
                first.kill()
                wait_until(lambda: not listens(), "the server did not notice")
            else:
                first.stop()
        watch = Stopwatch()
        assert second.answer().startswith("held")
        # The server sees at once that nobody listens any more; of one that stands still it cannot know.
        assert watch.awake < (0.4 if how == "killed" else 1.5)


def test_one_that_stood_still_keeps_its_place(
    leases: str, key: str, children: list[Child], rows: Callable[[], tuple[int, int]], db: psycopg.Connection[Any]
) -> None:
    first, second = children

    def is_passed_over() -> bool:
        found = db.execute("select from holdfast.lease_waiter where name = %s and passed_over", (f"key:{key}",))
        return found.rowcount == 1

    with Locks.from_url(leases) as locks:
        with locks.hold(key):
            for number, child in enumerate(children):
                child.send("hold", key)
                wait_until(lambda n=number: rows() == (1, n + 1), "a waiter did not come")  # type: ignore[misc]
            first.stop()
        assert second.answer().startswith("held")
        assert is_passed_over()
        late = threading.Thread(target=lambda: locks.hold(key, wait=PATIENCE).__enter__().release())
        late.start()
        wait_until(lambda: rows() == (1, 2), "the third waiter did not come")
        first.go_on()
        wait_until(lambda: not is_passed_over(), "it did not ask again")
        assert second.ask("release") == "released"
        assert first.answer().startswith("held")
        assert late.is_alive()
        assert first.ask("release") == "released"
        late.join(PATIENCE)


def test_a_paused_holder_is_refused_by_what_it_writes_to(leases: str, key: str, db: psycopg.Connection[Any]) -> None:
    table, child = f"resource_{key}", Child(leases)
    db.execute(f"create table {table} (fence bigint not null, writer text not null)")
    try:
        db.execute(f"insert into {table} values (0, '')")

        def write(fence: int, writer: str) -> bool:
            update = f"update {table} set fence = %(fence)s, writer = %(writer)s where fence <= %(fence)s"
            return db.execute(update, {"fence": fence, "writer": writer}).rowcount == 1

        stale = int(child.ask("hold", key).removeprefix("held "))
        assert write(stale, "child")
        child.stop()
        with Locks.from_url(leases) as locks, locks.hold(key, wait=PATIENCE) as held:
            assert write(held.fence, "parent")
            child.go_on()
            assert not write(stale, "child, late")
    finally:
        child.kill()
        db.execute(f"drop table {table}")


def test_leases_survive_their_connections(leases: str, key: str, server: Server, db: psycopg.Connection[Any]) -> None:
    with Locks.from_url(leases) as locks:
        with locks.hold(key, ttl=5) as held:

            def ends_at() -> object:
                return db.execute("select expires_at from holdfast.lease where name = %s", (f"key:{key}",)).fetchone()

            before, first_end = held.fence, ends_at()
            db.execute("select pg_terminate_backend(pid) from pg_stat_activity where application_name like 'holdfast%'")
            wait_until(lambda: ends_at() != first_end, "it was not renewed")
            held.check()
            held.extend(10)
            assert held.fence == before
        with locks.hold(key) as held:
            assert held.fence > before


def test_waiters_are_served_after_their_mailbox_was_cut_off(
    crowded: None,
    leases: str,
    key: str,
    children: list[Child],
    rows: Callable[[], tuple[int, int]],
    db: psycopg.Connection[Any],
) -> None:
    child = children[0]
    assert child.ask("hold", key).startswith("held")  # for long, or the waiter would soon ask by itself
    with Locks.from_url(leases) as locks:
        inside = threading.Event()

        def wait() -> None:
            with locks.hold(key, wait=PATIENCE):
                inside.set()

        waiter = threading.Thread(target=wait)
        waiter.start()
        wait_until(lambda: rows() == (1, 1), "the waiter did not come")
        before = db.execute("select mailbox from holdfast.lease_waiter where name = %s", (f"key:{key}",)).fetchone()
        db.execute("select pg_terminate_backend(pid) from pg_locks where locktype = 'advisory' and classid = 97")

        def asked_again() -> bool:
            found = db.execute("select mailbox from holdfast.lease_waiter where name = %s", (f"key:{key}",)).fetchone()
            return found is not None and found != before

        watch = Stopwatch()
        wait_until(asked_again, "the waiter did not ask again")
        assert watch.awake < 3
        watch = Stopwatch()
        assert child.ask("release") == "released"
        assert inside.wait(PATIENCE)
        assert watch.awake < 1
        waiter.join(PATIENCE)


@contextmanager
def frozen(pid: int) -> Iterator[None]:
    """A backend that stands still."""
    os.kill(pid, signal.SIGSTOP)
    try:
        stat = Path(f"/proc/{pid}/stat")
        wait_until(lambda: stat.read_text().rpartition(") ")[2].startswith("T"), "it does not stop")
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def postmaster(server: Any) -> int:
    return int((server.data_dir / "postgres" / "cluster" / "postmaster.pid").read_text().split()[0])


def backends(server: Any) -> list[int]:
    with psycopg.connect(server.url) as db:
        rows = db.execute("select pid from pg_stat_activity where application_name like 'holdfast%'")
        return [pid for (pid,) in rows]


@pytest.mark.parametrize("own_server", [{"synchronous_commit": "on"}], indirect=True, ids=["durable"])
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT], ids=["fast", "immediate"])
def test_a_restart_of_the_server_ends_no_lease(own_server: Any, key: str, how: signal.Signals) -> None:
    schema.upgrade(own_server.url)
    with Locks.from_url(leases_at(own_server.url)) as locks:
        with locks.hold(key, ttl=20) as held:
            fence, stopped = held.fence, postmaster(own_server)
            os.kill(stopped, how)
            wait_until(lambda: not Path(f"/proc/{stopped}").exists(), "the server did not stop")
            with start_postgres(own_server.data_dir, options={"fsync": "off"}):
                held.check()
                held.extend()
                assert [holder.fence for holder in locks.holders()] == [fence]
                held.release()
                with locks.hold(key) as again:
                    assert again.fence > fence


def test_a_server_that_is_silent_for_longer_than_the_lease_is_a_loss_on_time(own_server: Any, key: str) -> None:
    schema.upgrade(own_server.url)

    async def main() -> float:
        async with AsyncLocks.from_url(leases_at(own_server.url)) as locks:
            with pytest.raises(LockLost):
                async with locks.hold(key, ttl=1):
                    frozen, watch = backends(own_server), Stopwatch()
                    for pid in frozen:
                        os.kill(pid, signal.SIGSTOP)
                    try:
                        await asyncio.sleep(PATIENCE)
                    finally:
                        told = watch.awake
                        for pid in frozen:
                            os.kill(pid, signal.SIGCONT)
        return told

    assert asyncio.run(main()) < 1.4


def test_the_databases_clock_decides(leases: str, key: str, children: list[Child], db: psycopg.Connection[Any]) -> None:
    with Locks.from_url(leases) as locks:
        with pytest.raises(LockLost):
            with locks.hold(key) as held:
                assert held.remaining > 20
                db.execute("update holdfast.lease set expires_at = clock_timestamp() where name = %s", (f"key:{key}",))
                assert int(children[0].ask("hold", key).removeprefix("held ")) > held.fence
                with pytest.raises(LockLost):
                    held.extend()
        assert children[0].ask("release") == "released"


def test_roles_with_other_defaults_change_nothing(url: str, leases: str, key: str, db: psycopg.Connection[Any]) -> None:
    with Locks.from_url(leases) as plain, plain.hold(f"{key}-before"):
        pass
    db.execute("alter role postgres set default_transaction_isolation = 'serializable'")
    db.execute("alter role postgres set default_transaction_read_only = on")
    try:
        total = 0

        def add() -> None:
            nonlocal total
            with Locks.from_url(f"{leases}&application_name={uuid4().hex}") as locks:  # each on connections of its own
                for _ in range(10):
                    with locks.hold(key, wait=PATIENCE):
                        before = total
                        time.sleep(0.001)
                        total = before + 1

        threads = [threading.Thread(target=add) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        assert total == 40
    finally:
        db.execute("set default_transaction_read_only = off")
        db.execute("alter role postgres reset default_transaction_isolation")
        db.execute("alter role postgres reset default_transaction_read_only")


def test_a_holder_in_another_process_is_evicted_and_told(leases: str, key: str, children: list[Child]) -> None:
    child = children[0]
    assert child.ask("hold", key).startswith("held")
    with Locks.from_url(leases) as locks:
        (holder,) = [holder for holder in locks.holders() if holder.key == f"key:{key}"]
        assert (holder.pid, holder.here, holder.waiting) == (child.pid, False, 0)
        assert locks.evict(key)
        with locks.hold(key, wait=0):
            wait_until(lambda: child.ask("state") == "lost", "it was not told")
        assert not locks.evict(key)


def test_many_leases_are_renewed_on_few_connections(leases: str, key: str, server: Server) -> None:
    async def main() -> None:
        async with AsyncLocks.from_url(f"{leases}&application_name=thousand") as locks:
            blocks = [locks.hold(f"{key}-{number}", ttl=9) for number in range(1000)]
            handles = await asyncio.gather(*(block.__aenter__() for block in blocks))
            assert 0 < server.connections("thousand") <= 2
            ends_at = [held._ticket.expires_at for held in handles]

            def renewed() -> bool:
                return all(held._ticket.expires_at > end for held, end in zip(handles, ends_at, strict=True))

            await asyncio.to_thread(wait_until, renewed, "not all were renewed")
            for held in handles:
                held.check()
            await asyncio.gather(*(block.__aexit__(None, None, None) for block in blocks))

    asyncio.run(main())


def test_a_renewal_does_not_wait_for_a_crowd(leases: str, key: str) -> None:
    async def main() -> None:
        async with AsyncLocks.from_url(f"{leases}&application_name={uuid4().hex}") as locks, locks.hold(key) as held:
            house = locks._client.engine._house  # type: ignore[attr-defined]
            hub, ends_at = house.backend._hub, held._ticket.expires_at
            (connection,) = hub.shared

            async def until(condition: Callable[[], object], what: str) -> None:
                await asyncio.to_thread(wait_until, condition, what)

            with frozen(connection.pid):
                await asyncio.to_thread(take_duty, connection)  # all of them ask before the first batch goes out
                crowd = [asyncio.create_task(locks.holder(key)) for _ in range(100)]
                await until(lambda: len(connection.pending) == 100, "not everybody asks")
                hub.drive_soon(connection)
                await until(lambda: connection.in_flight, "nothing was sent")
                assert len(connection.in_flight) < 50
                before = len(connection.pending)
                house.attendant.renew_all()
                await until(lambda: len(connection.pending) > before, "no renewal is asked for")
                assert connection.pending[0].statement == "lease_extend"
            await asyncio.gather(*crowd)
            await asyncio.to_thread(wait_until, lambda: held._ticket.expires_at > ends_at, "it was not renewed")

    asyncio.run(asyncio.wait_for(main(), PATIENCE))


def test_spaces_and_tokens_do_not_mix(leases: str, key: str) -> None:
    with Locks.from_url(leases) as locks, Locks.from_url(leases, space="staging") as staging:
        with locks.hold(key) as held, staging.hold(key, wait=0):
            token = held.detach()
        with pytest.raises(NotHeld):
            locks.attach(token[:-4] + "AAAA").__enter__()
        with locks.attach(token):
            pass


def test_notes_of_any_kind_are_kept_as_far_as_a_server_can(leases: str, key: str) -> None:
    with Locks.from_url(leases) as locks:
        with locks.hold(f'{key} "quoted" \\ {{x}}', note='é "\\ \0 \ud800') as held:
            held.extend()
            (note,) = [holder.note for holder in locks.holders() if holder.key == held.key.text]
            assert note == 'é "\\ ? ?'


def test_what_killed_processes_left_is_swept(leases: str, key: str, db: psycopg.Connection[Any]) -> None:
    child = Child(leases)
    child.ask("hold", key)
    child.kill()
    db.execute("update holdfast.lease set expires_at = now() - interval '2 minutes' where name = %s", (f"key:{key}",))
    with Locks.from_url(f"{leases}&application_name={os.getpid()}") as locks, locks.hold(f"{key}-other"):
        left = db.execute("select from holdfast.lease where name = %s", (f"key:{key}",)).fetchall()
        assert left == []


def test_the_lock_by_which_a_mailbox_lives_is_no_holder(leases: str, url: str, key: str) -> None:
    with Locks.from_url(leases) as locks, locks.hold(key), Locks.from_url(url) as advisory:
        assert [holder.key for holder in advisory.holders() if holder.key.startswith("ns:97:")] == []
        with advisory.hold(97, 1):
            pass


def test_an_offer_that_another_of_its_owner_got_is_no_loss_of_what_is_granted_later(
    leases: str,
    key: str,
    children: list[Child],
    rows: Callable[[], tuple[int, int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    child = children[0]
    assert child.ask("hold", key).startswith("held")
    came, go_on, offered = threading.Event(), threading.Event(), House.offered

    def late(house: House, label: str) -> None:
        came.set()
        go_on.wait(PATIENCE)
        offered(house, label)

    monkeypatch.setattr(House, "offered", late)
    with Locks.from_url(leases) as locks, Locks.from_url(f"{leases}&connect_timeout=9") as others:  # two mailboxes

        def wait() -> None:
            with locks.hold(key, owner="turn-17", wait=PATIENCE) as held:
                held.check()

        with ThreadPoolExecutor() as pool:
            waiter = pool.submit(wait)
            wait_until(lambda: rows() == (1, 1), "nobody waits")
            assert child.ask("release") == "released"
            assert came.wait(PATIENCE)
            retry = others.hold(key, owner="turn-17")
            retry.__enter__()
            go_on.set()
            waiter.result(PATIENCE)
            with pytest.raises(LockLost):
                retry.__exit__(None, None, None)


def test_a_closed_client_leaves_no_descriptor(leases: str, key: str) -> None:
    def use_one() -> int:
        with Locks.from_url(leases) as locks, locks.hold(key):
            pass
        del locks
        gc.collect()
        return len(os.listdir("/proc/self/fd"))

    before = use_one()
    for _ in range(5):
        after = use_one()
    assert after <= before
