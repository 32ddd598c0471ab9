"""Lost answers, lost connections, restarts, a server that stands still: nothing is orphaned, nobody is stuck."""

import asyncio
import gc
import logging
import signal
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from own_server import OwnServer
from redis_proxy import Proxy, proxy
from sight import Database, wait_until, wait_until_renewed

from holdfast import AsyncLocks, BackendUnavailable, ClientClosed, LockLost, Locks, NotAcquired
from holdfast.engines.lease import attendant
from holdfast.engines.lease import engine as lease_engine
from holdfast.engines.redis import wire
from holdfast.engines.redis.backend import _milliseconds
from holdfast.engines.redis.listener import Listener
from holdfast.engines.redis.requests import Request
from holdfast.engines.redis.scripts import RELEASE, TAKE
from holdfast.engines.redis.wire import LoopWire, ThreadWire
from holdfast.testing import PATIENCE, Child, Stopwatch
from holdfast.ticket import State


@pytest.fixture
def server(tmp_path: Path) -> Iterator[OwnServer]:
    with OwnServer(tmp_path / "server") as server:
        yield server


@pytest.fixture
def between(server: OwnServer) -> Iterator[Proxy]:
    with proxy(server.socket) as between:
        yield between


def test_a_lost_answer_to_an_acquire_is_asked_for_again_and_the_lock_is_ours(
    server: OwnServer, between: Proxy, key: str
) -> None:
    with Locks.from_url(between.url) as locks:
        with locks.hold("warm"):
            pass
        between.lose_the_answer_to(TAKE.sha)
        with locks.hold(key, wait=PATIENCE) as held:
            assert between.lost == 1
            assert int(server.client().get(f"{{key:{key}}}:grant").split()[0]) == held.fence
        assert server.database().locks() == set()


def test_a_lost_answer_to_a_task_too(server: OwnServer, between: Proxy, key: str) -> None:
    async def main() -> None:
        async with AsyncLocks.from_url(between.url) as locks:
            async with locks.hold("warm"):
                pass
            between.lose_the_answer_to(TAKE.sha)
            async with locks.hold(key, wait=PATIENCE):
                assert between.lost == 1

    asyncio.run(main())
    assert server.database().locks() == set()


@pytest.mark.parametrize("wait", [0, 0.3])
def test_an_acquire_whose_answer_never_comes_leaves_no_orphan(
    server: OwnServer, between: Proxy, key: str, wait: float
) -> None:
    with Locks.from_url(between.url) as locks:
        with locks.hold("warm"):
            pass

        between.freeze()
        watch = Stopwatch()
        try:
            with locks.hold(key, wait=wait or 0.2):
                raise AssertionError("nobody answered")
        except NotAcquired:
            pass
        assert watch.awake < 0.9
        between.thaw()
        # The request reaches the server now, and is undone, with nobody else asking for anything.
        watch = Stopwatch()
        wait_until(
            lambda: not server.database().locks() and server.client().exists(f"{{key:{key}}}:grant"), "an orphan"
        )
        assert watch.awake < 3
        with locks.hold(key, wait=PATIENCE / 2):
            pass


def test_a_lost_answer_to_a_release_is_no_loss_of_the_next_ones_turn(
    server: OwnServer, between: Proxy, key: str
) -> None:
    with Locks.from_url(between.url) as locks, Locks.from_url(server.url) as others:
        with locks.hold(key):
            between.lose_the_answer_to(RELEASE.sha)
            block = locks.hold(key, wait=PATIENCE)
            got = threading.Event()
            thread = threading.Thread(target=lambda: (block.__enter__(), got.set()))
            thread.start()
            wait_until(lambda: server.database().queue(f"key:{key}"), "nobody waits")
            watch = Stopwatch()
        assert got.wait(PATIENCE) and watch.awake < 2  # not only when it would ask again by itself
        thread.join()
        block.__exit__(None, None, None)
        with others.hold(key, wait=PATIENCE):
            pass


def test_a_cut_network_is_no_loss_while_the_lease_lasts(server: OwnServer, between: Proxy, key: str) -> None:
    with Locks.from_url(between.url, ttl=4) as locks:
        with locks.hold(key) as held:
            for _ in range(3):
                between.cut()
                wait_until_renewed(held)
                held.check()
            assert held.remaining > 0


def test_a_holder_cut_off_knows_before_the_server_gives_its_lock_away(
    server: OwnServer, between: Proxy, key: str
) -> None:
    with Locks.from_url(between.url, ttl=1) as locks, Locks.from_url(server.url) as others:
        block = locks.hold(key)
        held = block.__enter__()
        between.freeze()

        def lost_when_taken() -> bool:
            with others.hold(key, wait=PATIENCE):
                return held.lost

        with ThreadPoolExecutor() as pool:
            assert pool.submit(lost_when_taken).result(PATIENCE)
        between.thaw()
        with pytest.raises(LockLost):
            block.__exit__(None, None, None)


def test_scripts_that_the_server_forgot_are_loaded_again(url: str, key: str) -> None:
    import redis

    with redis.Redis.from_url(url) as client, Locks.from_url(url) as locks:
        for _ in range(3):
            client.script_flush()
            with locks.hold(key) as held:
                client.script_flush()
                held.extend(20)
                client.script_flush()


def test_scripts_are_loaded_again_for_renewals_and_tasks(url: str, key: str) -> None:
    import redis

    async def main() -> None:
        async with AsyncLocks.from_url(url, ttl=4) as locks:
            async with locks.hold(key) as held:
                with redis.Redis.from_url(url) as client:
                    client.script_flush()
                await asyncio.to_thread(wait_until_renewed, held)
                held.check()

    asyncio.run(main())


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_restart_without_persistence_is_a_loss_that_is_told_and_the_fence_grows(
    server: OwnServer, key: str, how: int
) -> None:
    with Locks.from_url(server.url, ttl=3) as locks:
        block = locks.hold(key)
        held = block.__enter__()
        fence = held.fence
        server.restart(how)
        wait_until(lambda: held.lost, "the loss was not told")
        with pytest.raises(LockLost):
            block.__exit__(None, None, None)
        with locks.hold(key) as again:
            assert again.fence > fence


def test_a_restart_with_persistence_is_no_loss(tmp_path: Path, key: str) -> None:
    with OwnServer(tmp_path / "durable", appendonly="yes", appendfsync="always") as server:
        with Locks.from_url(server.url, ttl=6) as locks:
            with locks.hold(key) as held:
                fence = held.fence
                server.restart(signal.SIGKILL)
                assert server.client().get(f"key:{key}") is not None
                wait_until_renewed(held)
                held.check()
            with locks.hold(key) as again:
                assert again.fence > fence


def test_waiters_go_on_waiting_through_a_restart(server: OwnServer, key: str) -> None:
    """Those whose server comes back at once; one that stays away is refused."""
    with Locks.from_url(server.url, ttl=4) as locks:
        block = locks.hold(key)
        held = block.__enter__()
        outcome: list[object] = []

        def wait() -> None:
            try:
                with locks.hold(key, wait=PATIENCE) as held:
                    outcome.append(held.fence)
            except BackendUnavailable as error:
                outcome.append(error)

        waiter = threading.Thread(target=wait)
        waiter.start()
        wait_until(lambda: server.database().queue(f"key:{key}"), "nobody waits")
        server.restart()
        wait_until(lambda: held.lost, "the loss was not told")
        with pytest.raises(LockLost):
            block.__exit__(None, None, None)
        waiter.join(PATIENCE)
        assert outcome and isinstance(outcome[0], int), outcome


def test_a_killed_message_connection_is_made_anew_and_every_waiter_asks_again(
    crowded: None, url: str, db: Database, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    released = threading.Event()
    connect_again = Listener._connect_again
    monkeypatch.setattr(Listener, "_connect_again", lambda listener: released.is_set() and connect_again(listener))
    # Of another process: inside one, nobody has to be called. For long, or the waiter would soon ask by itself.
    child = Child(url, ttl=60)
    try:
        with Locks.from_url(url) as locks:
            child.ask("hold", key)
            served = threading.Event()

            def wait() -> None:
                with locks.hold(key, wait=PATIENCE):
                    served.set()

            waiter = threading.Thread(target=wait)
            waiter.start()
            wait_until(lambda: db.queue(f"key:{key}"), "nobody waits")
            db.redis.execute_command("CLIENT", "KILL", "TYPE", "pubsub")
            assert child.ask("release") == "released"
            assert db.queue(f"key:{key}") == []  # nobody heard the call: the waiter counts as dead
            released.set()
            watch = Stopwatch()
            assert served.wait(PATIENCE)
            assert watch.awake < 2
            waiter.join()
    finally:
        child.end()


def test_connections_that_have_gone_silent_are_given_up(
    server: OwnServer, between: Proxy, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "STALL_SECONDS", 0.3)
    with Locks.from_url(between.url) as locks:
        with locks.hold("warm"):
            pass
        between.silence()  # for good: a firewall has forgotten the connection
        with pytest.raises(NotAcquired):
            locks.hold(key, wait=0.2).__enter__()
        wait_until(lambda: not locks._client.engine.ready, "it is still believed in")
        with locks.hold(key, wait=PATIENCE):
            pass

    async def main() -> None:
        async with AsyncLocks.from_url(between.url) as tasks:
            async with tasks.hold("warm"):
                pass
            between.silence()
            with pytest.raises(NotAcquired):
                await tasks.hold(key, wait=0.2).__aenter__()
            await asyncio.sleep(1)
            async with tasks.hold(key, wait=PATIENCE):
                pass

    asyncio.run(main())


async def undone_though_late(
    entering: Coroutine[Any, Any, Any], db: Database, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a task asked for that was cancelled meanwhile reaches the server only after it was to be undone."""
    kept: list[tuple[LoopWire, bytes]] = []
    with monkeypatch.context() as patch:
        patch.setattr(LoopWire, "transmit", lambda line, payload: kept.append((line, payload)))
        task = asyncio.create_task(entering)
        while not kept:  # noqa: ASYNC110
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(2.5)  # the attendant, on the threads' connection, would have undone it by now
    for line, payload in kept:
        line.transmit(payload)

    def undone() -> bool:
        return bool(db.redis.exists(f"{{key:{key}}}:grant")) and not db.locks()

    await asyncio.to_thread(wait_until, undone, "an orphan was left")  # this loop has an answer to receive


def test_what_a_cancelled_task_asked_is_undone_after_it_was_done_by_whatever_connection(
    url: str, db: Database, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with AsyncLocks.from_url(url) as locks:
            async with locks.hold("warm"):
                pass
            await undone_though_late(locks.hold(key).__aenter__(), db, key, monkeypatch)

    asyncio.run(main())


def test_a_frozen_server_holds_nobody_past_the_deadline(server: OwnServer, key: str) -> None:
    with Locks.from_url(server.url) as locks:
        with locks.hold("warm"):
            pass
        server.freeze()
        try:
            watch = Stopwatch()
            with pytest.raises((NotAcquired, BackendUnavailable)):
                locks.hold(key, wait=0.3).__enter__()
            assert watch.awake < 1

            async def in_task() -> None:
                async with AsyncLocks.from_url(server.url) as tasks:
                    watch = Stopwatch()
                    with pytest.raises((NotAcquired, BackendUnavailable)):
                        await tasks.hold(key, wait=0.3).__aenter__()
                    assert watch.awake < 1

            asyncio.run(in_task())
        finally:
            server.thaw()
        with locks.hold(key, wait=PATIENCE):
            pass
        wait_until(lambda: not server.database().locks(), "an orphan was left")


def test_a_frozen_server_tells_the_loss_on_time(server: OwnServer, key: str) -> None:
    with Locks.from_url(server.url, ttl=1) as locks:
        told = threading.Event()
        block = locks.hold(key, on_lost=lambda held: told.set())
        held = block.__enter__()
        watch = Stopwatch()
        server.freeze()
        try:
            assert told.wait(PATIENCE) and watch.awake < 2
            assert held.lost
        finally:
            server.thaw()
        with pytest.raises(LockLost):
            block.__exit__(None, None, None)


def test_closing_a_client_ends_the_waits_for_a_server_that_stands_still(server: OwnServer, key: str) -> None:
    locks = Locks.from_url(server.url)
    with locks.hold("warm"):
        pass
    server.freeze()
    try:
        with ThreadPoolExecutor() as pool:
            waiter = pool.submit(locks.hold(key, wait=None).__enter__)
            wire = locks._client.engine._house.backend._link.wire  # type: ignore[attr-defined]
            wait_until(lambda: wire.pending, "nothing was asked")
            watch = Stopwatch()
            locks.close()
            with pytest.raises((ClientClosed, BackendUnavailable)):
                waiter.result(PATIENCE)
            assert watch.awake < 8
    finally:
        server.thaw()


def test_no_server_is_refused_at_once_and_clearly(tmp_path: Path) -> None:
    locks = Locks.from_url(f"unix://{tmp_path}/nowhere.sock")
    watch = Stopwatch()
    with pytest.raises(BackendUnavailable, match="cannot be reached"):
        locks.hold("k", wait=PATIENCE).__enter__()
    assert watch.awake < 2
    with locks.hold("k", unavailable="proceed") as held:
        assert not held.protected
    locks.close()


def test_a_request_longer_than_the_kernels_buffer_is_sent_to_its_end(url: str, key: str) -> None:
    note = "n" * 3_000_000
    with Locks.from_url(url) as locks:
        with locks.hold(key, wait=PATIENCE, note=note):
            assert [holder.note for holder in locks.holders() if holder.key == f"key:{key}"] == [note]


@pytest.mark.parametrize("kind", ["thread", "task"])
def test_a_long_wait_does_not_trust_a_connection_that_has_gone_silent(
    server: OwnServer, between: Proxy, key: str, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(wire, "STALL_SECONDS", 0.3)
    monkeypatch.setattr(lease_engine, "ANSWER_SECONDS", 1.0)

    def in_thread() -> None:
        with Locks.from_url(between.url) as locks:
            with locks.hold("warm"):
                pass
            between.silence()
            with locks.hold(key, wait=PATIENCE):
                pass

    async def in_task() -> None:
        async with AsyncLocks.from_url(between.url) as locks:
            async with locks.hold("warm"):
                pass
            between.silence()
            async with locks.hold(key, wait=PATIENCE):
                pass

    in_thread() if kind == "thread" else asyncio.run(in_task())


def test_a_long_wait_on_a_silent_connection_is_not_in_the_way_of_renewals(
    server: OwnServer, between: Proxy, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wire, "STALL_SECONDS", 0.3)
    monkeypatch.setattr(attendant, "_PATIENCE", 0.5)
    with Locks.from_url(between.url, ttl=8) as locks, ThreadPoolExecutor() as pool:
        with locks.hold(key) as held:
            between.silence()
            waiter = pool.submit(locks.hold("other", wait=PATIENCE).__enter__)  # it receives, and could do so for ever
            wait_until_renewed(held)
            held.check()
        waiter.result(PATIENCE)


def test_an_owners_retry_whose_answer_is_lost_is_told_to_the_older_handle(
    server: OwnServer, between: Proxy, key: str
) -> None:
    with Locks.from_url(between.url) as locks, ThreadPoolExecutor() as pool:
        older = locks.hold(key, owner="turn-17").__enter__()
        between.lose_the_answer_to(TAKE.sha)
        newer = pool.submit(locks.hold(key, owner="turn-17", wait=PATIENCE).__enter__).result(PATIENCE)
        assert between.lost == 1
        assert older._ticket.state is State.LOST  # not only when it would have been renewed
        newer.check()


def test_an_owners_retry_that_nobody_waits_for_any_more_too(server: OwnServer, between: Proxy, key: str) -> None:
    with Locks.from_url(between.url) as locks, ThreadPoolExecutor() as pool:
        told = threading.Event()
        locks.hold(key, owner="turn-17", on_lost=lambda held: told.set()).__enter__()
        between.freeze()
        retry = pool.submit(locks.hold(key, owner="turn-17", wait=0.3).__enter__)
        assert isinstance(retry.exception(PATIENCE), NotAcquired)
        watch = Stopwatch()
        between.thaw()
        assert told.wait(PATIENCE) and watch.awake < 3  # it would be renewed after ten seconds
        wait_until(lambda: not server.database().locks(), "an orphan was left")


def test_a_server_frozen_from_the_start_holds_no_task_past_the_deadline(server: OwnServer, key: str) -> None:
    async def main() -> None:
        async with AsyncLocks.from_url(server.url) as locks:
            with pytest.raises((NotAcquired, BackendUnavailable)):
                await locks.hold(key, wait=0.3).__aenter__()

    server.freeze()
    watch = Stopwatch()
    try:
        asyncio.run(main())
        assert watch.awake < 2  # nor does the end of the loop wait for the connecting thread
    finally:
        server.thaw()


def test_closing_a_client_of_a_frozen_server_does_not_stop_the_loop(server: OwnServer, key: str) -> None:
    async def main() -> float:
        locks = AsyncLocks.from_url(server.url, ttl=3)
        await asyncio.create_task(locks.hold(key).__aenter__())  # which the loss would cancel
        server.freeze()
        try:
            closing = asyncio.create_task(locks.close())
            longest = 0.0
            while not closing.done():
                watch = Stopwatch()
                await asyncio.sleep(0.01)
                longest = max(longest, watch.awake)
            with pytest.raises(BackendUnavailable):
                await closing
            return longest
        finally:
            server.thaw()

    assert asyncio.run(main()) < 0.5


def test_a_key_that_somebody_has_overwritten_is_not_the_end_of_others_leases(
    url: str, db: Database, key: str, caplog: pytest.LogCaptureFixture
) -> None:
    with Locks.from_url(url, ttl=4) as locks:
        overwritten = locks.hold(key)
        lost = overwritten.__enter__()
        with locks.hold(f"{key}-other") as held:
            db.redis.delete(f"key:{key}")
            db.redis.hset(f"key:{key}", "not", "ours")
            wait_until_renewed(held)
            wait_until(lambda: lost.lost, "the loss was not told")
            held.check()
            db.redis.delete(f"key:{key}")
        assert 0 < len([line for line in caplog.messages if "lease_renewal_failed" in line]) < 50
        with pytest.raises(LockLost):
            overwritten.__exit__(None, None, None)


def test_what_a_cancelled_attach_asked_is_undone_after_it_was_done(
    url: str, db: Database, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with AsyncLocks.from_url(url) as locks:
            async with locks.hold(key) as held:
                token = await held.detach()
            await undone_though_late(locks.attach(token).__aenter__(), db, key, monkeypatch)

    asyncio.run(main())


def test_a_block_that_the_collector_ends_in_the_attendants_thread_delays_nobodys_loss(
    server: OwnServer, key: str
) -> None:
    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            gc.collect()

    def body(locks: Locks) -> Iterator[None]:
        with locks.hold(f"{key}-abandoned", ttl=60):
            yield

    def abandon(locks: Locks) -> None:
        block = body(locks)
        next(block)
        circle: list[object] = [block]
        circle.append(circle)

    collector, log = Collector(), logging.getLogger("holdfast")
    with Locks.from_url(server.url) as locks:
        told = threading.Event()
        locks.hold(key, ttl=2.5, on_lost=lambda held: told.set()).__enter__()
        locks.hold(f"{key}-short", ttl=1).__enter__()
        gc.disable()
        abandoning = threading.Thread(target=abandon, args=(locks,))
        abandoning.start()
        abandoning.join()
        log.addHandler(collector)  # the attendant says that it could not renew the short one
        watch = Stopwatch()
        server.freeze()
        try:
            assert told.wait(PATIENCE) and watch.awake < 3.5
        finally:
            log.removeHandler(collector)
            gc.enable()
            server.thaw()


def test_ctrl_c_just_after_a_request_was_sent_leaves_its_answer_to_somebody(
    url: str, db: Database, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Locks.from_url(url) as locks:
        with locks.hold("warm"):
            pass
        enqueue = ThreadWire.enqueue

        def interrupted(line: ThreadWire, request: Request) -> None:
            monkeypatch.setattr(ThreadWire, "enqueue", enqueue)
            enqueue(line, request)
            raise KeyboardInterrupt

        monkeypatch.setattr(ThreadWire, "enqueue", interrupted)
        with pytest.raises(KeyboardInterrupt):
            locks.hold(key).__enter__()
        watch = Stopwatch()
        wait_until(lambda: db.redis.exists(f"{{key:{key}}}:grant") and not db.locks(), "an orphan was left")
        assert watch.awake < 2


@pytest.mark.parametrize(("seconds", "milliseconds"), [(0.0001, b"1"), (0.1004, b"101"), (30.0, b"30000")])
def test_the_server_keeps_a_lease_for_no_less_than_the_holder_counts_on(seconds: float, milliseconds: bytes) -> None:
    assert _milliseconds(seconds) == milliseconds
