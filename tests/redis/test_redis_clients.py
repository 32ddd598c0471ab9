"""How a server is reached, what is shared, and what is never told."""

import asyncio
import os
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
import redis.asyncio
from own_server import OwnServer
from sight import Database, wait_until, wait_until_renewed

from holdfast import AsyncLocks, BackendUnavailable, InvalidOption, LockError, Locks, Unsupported
from holdfast.engines.redis import RedisEngine
from holdfast.engines.redis.wire import LoopWire
from holdfast.testing import PATIENCE

SECRET = "hunter2 & co/@:%#?"


@pytest.fixture
def alone(tmp_path: Path) -> Iterator[OwnServer]:
    """One that nobody else in this process has to do with."""
    with OwnServer(tmp_path / "alone") as server:
        yield server


@pytest.fixture
def guarded(tmp_path: Path) -> Iterator[OwnServer]:
    with OwnServer(tmp_path / "guarded", requirepass="hunter2") as server:
        yield server


def mine(db: Database) -> list[dict[str, object]]:
    return [client for client in db.connections() if client["name"] == f"holdfast[{os.getpid()}]"]


@pytest.mark.parametrize("scheme", ["redis", "valkey"])
def test_addresses_of_every_kind_lead_to_one_lock(guarded: OwnServer, scheme: str, key: str) -> None:
    addresses = [
        f"{scheme}://:hunter2@127.0.0.1:{guarded.port}/0",
        f"{scheme}://default:hunter2@localhost:{guarded.port}",
        f"unix://:hunter2@{guarded.socket}",
        f"{scheme}+unix://:hunter2@{guarded.socket}?db=0",
    ]
    clients = [Locks.from_url(address) for address in addresses]
    other_database = Locks.from_url(f"{scheme}://:hunter2@127.0.0.1:{guarded.port}/1")
    try:
        with clients[0].hold(key):
            for locks in clients:
                with locks.try_hold(key) as held:
                    assert held is None
            with other_database.try_hold(key) as held:
                assert held is not None
        engines = [locks._client.engine for locks in clients]
        assert len({engine.server for engine in engines}) == 1
        assert other_database._client.engine.server != engines[0].server
    finally:
        for locks in [*clients, other_database]:
            locks.close()


def test_re_entry_is_seen_across_addresses(guarded: OwnServer, key: str) -> None:
    with Locks.from_url(guarded.url) as one, Locks.from_url(f"redis://:hunter2@127.0.0.1:{guarded.port}") as other:
        with one.hold(key):
            with pytest.raises(LockError, match="already"):
                other.hold(key).__enter__()


def test_a_client_of_the_application_lends_its_address_and_nothing_else(guarded: OwnServer, key: str) -> None:
    pool = redis.ConnectionPool(host="127.0.0.1", port=guarded.port, password="hunter2", max_connections=1)
    client = redis.Redis(connection_pool=pool, decode_responses=True)
    taken = pool.get_connection()  # the only one there is
    with Locks(RedisEngine.from_client(client)) as locks:
        with locks.hold(key):
            assert len(mine(guarded.database())) == 2
    pool.release(taken)
    assert client.ping()
    client.close()


def test_an_async_client_of_the_application_does_too(guarded: OwnServer, key: str) -> None:
    async def main() -> None:
        client = redis.asyncio.Redis.from_url(f"redis://:hunter2@127.0.0.1:{guarded.port}", decode_responses=True)
        async with AsyncLocks(RedisEngine.from_client(client)) as locks:
            async with locks.hold(key) as held:
                assert held.fence > 0
        unix = redis.asyncio.Redis.from_url(guarded.url)
        async with AsyncLocks(RedisEngine.from_client(unix)) as locks, locks.hold(key):
            pass
        assert await client.ping()
        await client.aclose()
        await unix.aclose()

    asyncio.run(main())


def test_what_is_no_client_is_refused() -> None:
    with pytest.raises(Unsupported, match="connection pool"):
        RedisEngine.from_client(object())


def test_at_most_three_connections_however_many_locks_and_threads(alone: OwnServer, key: str) -> None:
    url, db = alone.url, alone.database()

    async def main() -> None:
        async with AsyncLocks.from_url(url, ttl=4) as locks:
            blocks = [locks.hold(f"{key}-{number}") for number in range(500)]
            handles = await asyncio.gather(*(block.__aenter__() for block in blocks))
            await asyncio.to_thread(wait_until_renewed, *handles)
            assert not any(held.lost for held in handles)
            assert len(mine(db)) <= 3
            assert len([client for client in mine(db) if client["sub"] == "1"]) == 1
            await asyncio.gather(*(block.__aexit__(None, None, None) for block in blocks))

    asyncio.run(main())
    wait_until(lambda: not mine(db), "a connection was left")


def test_threads_share_one_connection_and_each_gets_its_own_answer(alone: OwnServer, key: str) -> None:
    url, db = alone.url, alone.database()
    with Locks.from_url(url) as locks:
        failures: list[BaseException] = []

        def work(number: int) -> None:
            try:
                for turn in range(100):
                    with locks.hold(f"{key}-{number}", note=f"{number}") as held:
                        assert db.redis.get(f"key:{key}-{number}") is not None
                        if turn % 20 == 0:
                            held.extend(7)
            except BaseException as failure:
                failures.append(failure)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        assert not failures
        assert len(mine(db)) == 2


def test_connections_of_closed_loops_do_not_pile_up(alone: OwnServer, key: str) -> None:
    url, db = alone.url, alone.database()
    locks = AsyncLocks.from_url(url)

    async def once() -> None:
        async with locks.hold(key):
            pass

    for _ in range(10):
        asyncio.run(once())
    wait_until(lambda: len(mine(db)) <= 4, "they pile up")
    asyncio.run(locks.close())
    wait_until(lambda: not mine(db), "a connection was left")


@pytest.mark.parametrize("place", ["{}@127.0.0.1:1", "user:{}@127.0.0.1:1/0", ":{}@127.0.0.1:port"])
@pytest.mark.parametrize("secret", ["hunter2", "12/hunter2", "hunter2#x", "hunter2?x=y", "hunter2@x", "hunter2:x"])
def test_no_part_of_a_password_is_in_an_error(place: str, secret: str) -> None:
    for scheme in ("redis", "rediss", "valkey"):
        with pytest.raises((BackendUnavailable, InvalidOption)) as caught:
            with Locks.from_url(f"{scheme}://{place.format(secret)}") as locks:
                locks.hold("k", wait=PATIENCE).__enter__()
        error: BaseException | None = caught.value
        while error is not None:
            assert "hunter2" not in f"{error!r} {error}"
            error = error.__cause__


def test_a_wrong_password_is_said_clearly_and_not_shown(guarded: OwnServer) -> None:
    with pytest.raises(BackendUnavailable, match="refused") as caught:
        with Locks.from_url(f"redis://:correct-horse@127.0.0.1:{guarded.port}") as locks:
            locks.hold("k").__enter__()
    assert "horse" not in str(caught.value)
    assert "hunter2" not in repr(RedisEngine.from_url(guarded.url, {}))


@pytest.mark.parametrize(
    "options",
    [{"wait_replicas": -1}, {"wait_replicas": True}, {"window": 0}, {"window": 61}, {"replicas_within": "1"}, {"x": 1}],
)
def test_options_that_make_no_sense_are_refused(options: dict[str, object]) -> None:
    with pytest.raises(InvalidOption, match=next(iter(options))):
        Locks.from_url("redis://127.0.0.1", **options)


def test_something_else_under_the_locks_name_is_said(url: str, db: Database, key: str) -> None:
    db.redis.rpush(f"key:{key}", "not a lock")
    try:
        with Locks.from_url(url) as locks:
            with pytest.raises(BackendUnavailable, match="something else is kept"):
                locks.hold(key).__enter__()
    finally:
        db.redis.delete(f"key:{key}")


def test_operators_see_the_owner_of_another_process_and_a_detached_lock(url: str, key: str) -> None:
    with Locks.from_url(url) as locks:
        with locks.hold(key, owner="turn-17", note="nightly: ümlaut {x}") as held:
            (holder,) = [one for one in locks.holders() if one.key == f"key:{key}"]
            assert holder.owner == "turn-17" and holder.note == "nightly: ümlaut {x}"
            assert holder.pid == os.getpid() and holder.here and holder.fence == held.fence and holder.waiting == 0
            token = held.detach()
        (holder,) = [one for one in locks.holders() if one.key == f"key:{key}"]
        assert holder.owner == "detached"
        with locks.attach(token):
            pass


def test_loops_that_come_in_other_threads_disturb_nobody(url: str, key: str) -> None:
    with Locks.from_url(url) as locks:
        with locks.hold(key):
            pass
        link = locks._client.engine._backend._link  # type: ignore[attr-defined]
        loops = [asyncio.new_event_loop() for _ in range(100)]
        pairs = [socket.socketpair() for _ in loops]
        wires = [LoopWire(pair[0], loop) for pair, loop in zip(pairs, loops, strict=True)]
        ended = threading.Event()

        def come_and_go() -> None:
            while not ended.is_set():
                link._in_loops.update(zip(loops, wires, strict=True))
                for loop in loops:
                    link._in_loops.pop(loop)

        thread = threading.Thread(target=come_and_go)
        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-5)
        thread.start()
        try:
            for _ in range(5000):
                link.close_orphans()
        finally:
            sys.setswitchinterval(interval)
            ended.set()
            thread.join()
            for wire, loop, pair in zip(wires, loops, pairs, strict=True):
                wire.close()
                pair[1].close()
                loop.close()
