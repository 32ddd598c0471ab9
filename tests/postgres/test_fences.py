"""``fence=True``: numbers that grow from grant to grant of a key, whoever gets it, and are never given twice."""

import asyncio
import shutil
import subprocess
import threading
from pathlib import Path
from typing import Any

import psycopg
import pytest
from eyes import Server, wait_until

from addresses import with_option
from holdfast import AsyncLocks, BackendUnavailable, InvalidOption, Locks, Unsupported, schema
from holdfast.engines.postgres.lines import HANDOVERS
from holdfast.testing import Child


@pytest.fixture
def fenced_url(url: str) -> str:
    schema.upgrade(url)
    return with_option(url, "fence=true")


def minted(db: psycopg.Connection[Any]) -> int:
    """How many numbers the server has given out."""
    row = db.execute("select last_value / 64 from holdfast.fence").fetchone()
    assert row is not None
    return int(row[0])


def waiting_here(locks: Locks) -> int:
    (holder,) = [holder for holder in locks.holders() if holder.here]
    return holder.waiting or 0


def test_without_the_option_there_is_none(url: str) -> None:
    with Locks.from_url(url) as locks:
        assert not locks.capabilities.fenced
        with locks.hold("a") as held, pytest.raises(Unsupported):
            _ = held.fence
    with pytest.raises(InvalidOption, match="fence"):
        Locks.from_url(url, fence="yes")


def test_processes_that_take_turns_get_growing_numbers(fenced_url: str) -> None:
    children = [Child(fenced_url) for _ in range(3)]
    try:
        with Locks.from_url(fenced_url) as locks:
            fences = []
            for _ in range(4):
                for child in children:
                    fences.append(int(child.ask("hold", "turns").split()[1]))
                    child.ask("release")
                with locks.hold("turns") as held:
                    fences.append(held.fence)
            assert fences == sorted(set(fences))
    finally:
        for child in children:
            child.kill()


def test_who_waited_in_the_servers_queue_gets_a_greater_number_than_the_holder_before(
    fenced_url: str, server: Server
) -> None:
    child = Child(fenced_url)
    try:
        with Locks.from_url(fenced_url) as locks:
            for _ in range(5):
                with locks.hold(31, 1) as held:
                    before = held.fence
                    child.send("hold-pair", "31", "1")
                    wait_until(lambda: server.waiting(1), "the child never waited")
                assert int(child.answer().split()[1]) > before
                child.ask("release")
    finally:
        child.kill()


def test_from_hand_to_hand_the_numbers_grow_without_a_round_trip(
    fenced_url: str, db: psycopg.Connection[Any], server: Server
) -> None:
    """In the order of the grants, and never one that another process could get."""
    with Locks.from_url(fenced_url) as locks:
        fences: list[int] = []
        threads = []

        def hold() -> None:
            with locks.hold(31, 2) as held:
                fences.append(held.fence)

        with locks.hold(31, 2) as held:
            fences.append(held.fence)
            for number in range(HANDOVERS):
                threads.append(threading.Thread(target=hold))
                threads[-1].start()
                wait_until(lambda n=number: waiting_here(locks) > n, "nobody waits")  # type: ignore[misc]
            before = minted(db)
        for thread in threads:
            thread.join()
        assert minted(db) == before
        assert len(fences) == 1 + HANDOVERS and fences == sorted(set(fences))
        with locks.hold(31, 2) as held:
            assert held.fence > fences[-1]


def test_tasks_in_one_batch_have_numbers_of_their_own(fenced_url: str) -> None:
    async def main() -> None:
        async with AsyncLocks.from_url(fenced_url) as locks:

            async def hold(entity: int) -> int:
                async with locks.hold(32, entity) as held:
                    return held.fence

            fences = await asyncio.gather(*(hold(entity) for entity in range(300)))
            assert len(set(fences)) == 300

    asyncio.run(main())


def test_a_database_that_was_not_upgraded_says_what_to_do(own_server: Any) -> None:
    with Locks.from_url(own_server.url, fence=True) as locks:
        with pytest.raises(BackendUnavailable, match="holdfast db upgrade"):
            locks.hold("a", wait=5).__enter__()
        schema.upgrade(own_server.url)
        with locks.hold("a") as held:  # and goes on once it was done
            assert held.fence > 0


def test_a_role_that_may_not_mint_holds_nothing(own_server: Any) -> None:
    schema.upgrade(own_server.url)
    with psycopg.connect(own_server.url, autocommit=True) as db:
        db.execute("create role app login; grant usage on schema holdfast to app")
        with Locks.from_url(own_server.url.replace("postgres@", "app@"), fence=True) as locks:
            with pytest.raises(BackendUnavailable, match="permission denied"):
                locks.hold("a", wait=5).__enter__()
            assert Server(db).advisory_locks() == []
            db.execute("grant usage on sequence holdfast.fence to app")
            with locks.hold("a") as held:
                assert held.fence > 0


def test_a_promoted_standby_that_missed_the_last_grants_gives_greater_numbers(own_server: Any, tmp_path: Path) -> None:
    from holdfast.embedded import start_postgres

    schema.upgrade(own_server.url)
    own_server.close()
    copy = tmp_path / "standby"
    subprocess.run(["cp", "-a", str(own_server.data_dir), str(copy)], check=True)
    for leftover in ("keeper", "users", "server", "start"):
        (copy / "postgres" / leftover).unlink(missing_ok=True)
    signal_file = copy / "postgres" / "cluster" / "standby.signal"
    signal_file.touch()
    shutil.chown(signal_file, signal_file.parent.owner(), signal_file.parent.group())
    with start_postgres(own_server.data_dir, options={"fsync": "off"}) as primary:
        with Locks.from_url(primary.url, fence=True) as locks:
            for _ in range(100):
                with locks.hold("a") as held:
                    last = held.fence
    with start_postgres(copy, options={"fsync": "off", "hot_standby": "on"}) as standby:
        with psycopg.connect(standby.url, autocommit=True) as db:
            db.execute("select pg_promote(true)")
        with Locks.from_url(standby.url, fence=True) as locks:
            with locks.hold("a") as held:
                assert held.fence > last
