"""What the fence is for: a holder that does not know of its loss, after a pause, a failover, a jump of the clock."""

import ctypes.util
import glob
import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from own_server import OwnServer
from sight import Database, wait_until

from holdfast import BackendUnavailable, LockLost, Locks
from holdfast.testing import PATIENCE, Child


class Fenced:
    """A resource that refuses what is older than what it has seen."""

    def __init__(self) -> None:
        self.fence = 0
        self.written: list[str] = []

    def write(self, fence: int, text: str) -> bool:
        if fence < self.fence:
            return False
        self.fence = fence
        self.written.append(text)
        return True


def fence_of(answer: str) -> int:
    return int(answer.removeprefix("held "))


def test_a_holder_paused_past_its_lease_is_refused_by_the_resource_and_finds_out(url: str, key: str) -> None:
    resource, child = Fenced(), Child(url)
    try:
        before = fence_of(child.ask("hold", key))
        assert resource.write(before, "by the child")
        child.stop()
        with Locks.from_url(url) as locks, locks.hold(key, wait=PATIENCE) as held:
            assert resource.write(held.fence, "by the next")
            child.go_on()  # it believes that it holds the lock, and writes before it looks
            assert not resource.write(before, "by the child, late")
            assert child.ask("state") == "lost"
            assert child.ask("release") == "lost"
            held.check()
    finally:
        child.kill()
    assert resource.written == ["by the child", "by the next"]


def test_expired_then_released_leaves_the_successors_lock_alone(url: str, db: Database, key: str) -> None:
    """The renewal is kept from happening by taking the key away under the holder."""
    with Locks.from_url(url) as locks, Locks.from_url(url) as others:
        block = locks.hold(key)
        block.__enter__()
        db.redis.delete(f"key:{key}")  # as if it had run out

        def take_and_look() -> None:
            with others.hold(key) as present:
                with pytest.raises(LockLost):
                    block.__exit__(None, None, None)
                present.check()
                assert db.redis.get(f"key:{key}") is not None

        with ThreadPoolExecutor() as pool:
            pool.submit(take_and_look).result(PATIENCE)


def test_a_thousand_extensions_do_not_add_up_on_the_server(url: str, db: Database, key: str) -> None:
    with Locks.from_url(url) as locks, locks.hold(key, ttl=20) as held:
        for _ in range(1000):
            held.extend(10)
        assert 0 < db.redis.pttl(f"key:{key}") <= 10_000


def test_a_replica_promoted_without_the_lock_makes_two_holders_and_the_fence_tells_them_apart(
    tmp_path: Path, key: str
) -> None:
    with OwnServer(tmp_path / "master") as master:
        with OwnServer(tmp_path / "replica", replicaof=f"127.0.0.1 {master.port}") as replica:
            wait_until(lambda: replica.client().info("replication")["master_link_status"] == "up", "no replication")
            with pytest.raises(BackendUnavailable, match="exclude nobody"), Locks.from_url(replica.url) as locks:
                locks.hold(key).__enter__()
            replica.freeze()  # what is written from now on is not replicated
            resource = Fenced()
            with Locks.from_url(master.url, ttl=1) as before:
                block = before.hold(key)
                old = block.__enter__()
                old_fence = old.fence
                assert resource.write(old_fence, "old")
                master.stop(signal.SIGKILL)
                replica.thaw()
                replica.client().replicaof("NO", "ONE")

                def take_at_the_replica() -> None:
                    with Locks.from_url(replica.url) as after, after.hold(key) as new:
                        assert resource.write(new.fence, "new")
                        assert not resource.write(old_fence, "old, late")

                with ThreadPoolExecutor() as pool:  # somebody else: it is the same database
                    pool.submit(take_at_the_replica).result(PATIENCE)
                wait_until(lambda: old.lost, "the loss was not told")


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[OwnServer, OwnServer]]:
    with OwnServer(tmp_path / "master") as master:
        with OwnServer(tmp_path / "replica", replicaof=f"127.0.0.1 {master.port}") as replica:
            wait_until(lambda: master.client().info("replication")["connected_slaves"] == 1, "no replication")
            wait_until(lambda: replica.client().info("replication")["master_link_status"] == "up", "no replication")
            yield master, replica


def test_a_grant_that_replicas_must_confirm_is_refused_without_them_and_given_back(
    pair: tuple[OwnServer, OwnServer], key: str
) -> None:
    master, replica = pair
    with (
        Locks.from_url(master.url, wait_replicas=1, replicas_within=PATIENCE) as locks,
        Locks.from_url(master.url, wait_replicas=1, replicas_within=1) as impatient,
    ):
        with locks.hold(key) as held:
            assert replica.client().get(f"key:{key}") is not None
            held.check()
        replica.freeze()
        try:
            with pytest.raises(BackendUnavailable, match="0 of 1 replicas"):
                impatient.hold(key).__enter__()
            assert master.database().locks() == set()
        finally:
            replica.thaw()

        # Handed over inside the process, too, it is confirmed.
        def wait(got: list[bool]) -> None:
            with locks.hold(key, wait=PATIENCE):
                got.append(replica.client().get(f"key:{key}") is not None)

        got: list[bool] = []
        with locks.hold(key, wait=PATIENCE):
            waiter = threading.Thread(target=wait, args=(got,))
            waiter.start()
            wait_until(lambda: master.database().queue(f"key:{key}"), "nobody waits")
        waiter.join(PATIENCE)
        assert got == [True]

        def refused() -> None:
            with pytest.raises(BackendUnavailable, match="0 of 1 replicas"):
                impatient.hold(key, wait=PATIENCE).__enter__()

        with ThreadPoolExecutor() as pool:
            with locks.hold(key, wait=PATIENCE):
                heir = pool.submit(refused)
                wait_until(lambda: master.database().queue(f"key:{key}"), "nobody waits")
                replica.freeze()
            try:
                heir.result(PATIENCE)
            finally:
                replica.thaw()


def _faketime() -> str | None:
    found = glob.glob("/usr/lib/*/faketime/libfaketime.so.1")
    return found[0] if found else ctypes.util.find_library("faketime")


@pytest.mark.skipif(_faketime() is None, reason="libfaketime is not installed")
def test_the_fence_holds_when_the_servers_clock_jumps(tmp_path: Path, key: str) -> None:
    offset = tmp_path / "offset"
    offset.write_text("+0")
    environment = {
        "LD_PRELOAD": str(_faketime()),
        "FAKETIME_TIMESTAMP_FILE": str(offset),
        "FAKETIME_NO_CACHE": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }
    if not OwnServer.can_start_with(environment):
        pytest.skip("this build of Redis does not start under libfaketime")  # with jemalloc it may not
    with OwnServer(tmp_path / "server", environment=environment) as server, Locks.from_url(server.url) as locks:
        client: Any = server.client()

        def jump(seconds: int) -> None:
            before = client.time()[0]
            offset.write_text(f"{seconds:+d}")
            wait_until(lambda: abs(client.time()[0] - before) > abs(seconds) / 3, "libfaketime does not work here")

        fences = []

        def take() -> None:
            with locks.hold(key, wait=PATIENCE) as held:
                fences.append(held.fence)

        take()
        jump(+7200)
        take()
        jump(-7200)
        take()
        take()
        assert fences == sorted(set(fences)), fences

        # A jump ahead ends leases: it is a loss, and is told.
        block = locks.hold(key, ttl=3)
        held = block.__enter__()
        fences.append(held.fence)
        offset.write_text("+20000")
        wait_until(lambda: held.lost, "the loss was not told")
        with pytest.raises(LockLost):
            block.__exit__(None, None, None)
        take()
        assert fences == sorted(set(fences)), fences
