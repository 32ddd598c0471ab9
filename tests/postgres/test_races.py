"""Ends that come at bad moments: a client is closed, a wait given up, a caller interrupted while others go on."""

import signal
import threading
from typing import Any

import psycopg
import pytest
from eyes import Server, wait_until
from pg_proxy import proxy

from holdfast import ClientClosed, LockLost, Locks, NotAcquired
from holdfast.testing import PATIENCE, Stopwatch


def in_thread(call: Any) -> tuple[threading.Thread, list[Any]]:
    """Starts ``call`` in a thread; the list gets what it returns or raises."""
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append(call())
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, outcome


def hub_of(locks: Any) -> Any:
    return locks._client.engine._hub


def test_a_key_waited_for_by_a_closed_client_can_be_had_by_another(
    url: str, db: psycopg.Connection[Any], server: Server
) -> None:
    db.execute("select pg_advisory_lock(3, 1)")
    first = Locks.from_url(url)
    waiter, outcome = in_thread(lambda: first.hold(3, 1, wait=PATIENCE).__enter__())
    wait_until(lambda: server.waiting(1), "nobody stood in the server's queue")
    first.close()
    waiter.join(PATIENCE)
    assert isinstance(outcome[0], ClientClosed)
    with Locks.from_url(url) as second:
        with second.hold(3, 11):  # connects
            pass
        with pytest.raises(NotAcquired):
            second.hold(3, 1, wait=0.05).__enter__()
        db.execute("select pg_advisory_unlock(3, 1)")
        with second.hold(3, 1, wait=PATIENCE):
            pass


def test_a_lock_handed_over_between_clients_outlives_the_client_it_came_from(url: str, server: Server) -> None:
    """Two clients with different options have different connections. Nobody may lose a lock because another closes."""
    first, second = Locks.from_url(url), Locks.from_url(url, max_waiting=3)
    with second.hold(3, 22):
        pass
    holder = first.hold(3, 2)
    holder.__enter__()
    waiter, outcome = in_thread(lambda: second.hold(3, 2, wait=PATIENCE).__enter__())
    wait_until(lambda: hub_of(second).lines.by_key[3, 2].waiting, "nobody waits")
    holder.__exit__(None, None, None)
    waiter.join(PATIENCE)
    first.close()
    assert [granted for _, granted in server.advisory_locks(2)] == [True], "a handle says held, the server says not"
    outcome[0].check()
    outcome[0].release()
    second.close()


def test_closing_one_client_leaves_the_waiters_of_another_in_the_queue(
    url: str, db: psycopg.Connection[Any], server: Server
) -> None:
    db.execute("select pg_advisory_lock(3, 3)")
    first, second = Locks.from_url(url), Locks.from_url(url, max_waiting=3)
    with second.hold(3, 33):
        pass
    waiter, _ = in_thread(lambda: first.hold(3, 3, wait=PATIENCE).__enter__())
    wait_until(lambda: server.waiting(3), "nobody stood in the server's queue")
    other, outcome = in_thread(lambda: second.hold(3, 3, wait=PATIENCE).__enter__())
    wait_until(lambda: len(hub_of(second).lines.by_key[3, 3].waiting) == 2, "the second does not wait")
    first.close()
    waiter.join(PATIENCE)
    db.execute("select pg_advisory_unlock(3, 3)")
    other.join(PATIENCE)
    assert outcome, "the waiter of the other client was forgotten"
    outcome[0].release()
    second.close()


def test_clients_that_share_connections_close_one_by_one(url: str, db: psycopg.Connection[Any], server: Server) -> None:
    db.execute("select pg_advisory_lock(3, 12)")
    address = f"{url}&application_name=shared"
    first, second = Locks.from_url(address), Locks.from_url(address)
    theirs = first.hold(3, 13).__enter__()
    held = second.hold(3, 11).__enter__()
    waiter, outcome = in_thread(lambda: second.hold(3, 12, wait=PATIENCE).__enter__())
    wait_until(lambda: server.waiting(12), "nobody stood in the server's queue")
    watch = Stopwatch()
    first.close()
    assert watch.awake < 1, "closing waited for the other's wait"
    assert theirs.lost and not server.advisory_locks(13), "what the closed client held is not free"
    held.check()
    assert server.holder(11) and server.waiting(12), "the other client lost its lock or its place"
    db.execute("select pg_advisory_unlock(3, 12)")
    waiter.join(PATIENCE)
    outcome[0].release()
    second.close()
    wait_until(lambda: not server.connections("shared"), "connections were left open")


def test_close_ends_a_wait_for_a_connection(url: str) -> None:
    with proxy(url) as network:
        network.freeze()
        locks = Locks.from_url(network.url)
        waiter, outcome = in_thread(lambda: locks.hold(3, 4, wait=None).__enter__())
        wait_until(lambda: network.opened, "nobody connects")
        locks.close()
        waiter.join(PATIENCE)
        assert isinstance(outcome[0], ClientClosed), outcome


def test_close_does_not_hang_on_a_silent_server_and_tells_everybody(url: str, server: Server) -> None:
    with proxy(url) as network:
        locks = Locks.from_url(network.url)
        held = [locks.hold(3, 50 + number).__enter__() for number in range(3)]
        network.freeze()
        waiter, outcome = in_thread(lambda: locks.hold(3, 5, wait=None).__enter__())
        wait_until(lambda: hub_of(locks).lines.by_key.get((3, 5)), "nobody asks")
        watch = Stopwatch()
        closer, _ = in_thread(locks.close)
        waiter.join(PATIENCE)
        assert isinstance(outcome[0], ClientClosed), outcome
        wait_until(lambda: all(handle.lost for handle in held), "a holder was not told")  # in whatever order
        closer.join(PATIENCE)
        assert not closer.is_alive() and watch.awake < 3


def test_a_release_that_is_interrupted_in_the_queue_leaves_the_connection_usable(url: str) -> None:
    """Ctrl-C while the unlock waits for its turn: the turn comes, and there is no one to take it."""
    with proxy(url) as network, Locks.from_url(network.url) as locks:
        mine = locks.hold(3, 6)
        mine.__enter__()
        network.freeze()
        other, outcome = in_thread(lambda: locks.hold(3, 7, wait=PATIENCE).__enter__())
        connection = hub_of(locks).shared[0]
        wait_until(lambda: connection.duty and connection.in_flight, "the other is not on its way")

        def interrupt() -> None:
            wait_until(lambda: connection.pending, "the unlock is not queued")
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

        interrupter, _ = in_thread(interrupt)
        with pytest.raises(KeyboardInterrupt):
            mine.__exit__(None, None, None)
        interrupter.join(PATIENCE)
        network.thaw()
        other.join(PATIENCE)
        outcome[0].check()
        with locks.hold(3, 6, wait=PATIENCE):
            pass
        outcome[0].release()


def test_a_try_on_a_silent_server_is_ended_by_close(url: str) -> None:
    """A try waits for its answer, not for a deadline of its own that close() could move."""
    with proxy(url) as network:
        locks = Locks.from_url(network.url)
        with locks.hold(3, 10):
            pass
        network.freeze()
        tries, outcome = in_thread(lambda: locks.try_hold(3, 10).__enter__())
        wait_until(lambda: hub_of(locks).shared[0].in_flight, "nobody asks")
        closer, _ = in_thread(locks.close)
        tries.join(PATIENCE)
        assert isinstance(outcome[0], ClientClosed), outcome
        closer.join(PATIENCE)


def test_anybody_may_notify_anything(url: str, db: psycopg.Connection[Any]) -> None:
    lost = threading.Event()
    with Locks.from_url(url) as locks:
        with pytest.raises(LockLost):
            with locks.hold(3, 8, on_lost=lambda held: lost.set()):
                db.execute("select pg_notify('holdfast_evict', 'garbage'), pg_notify('holdfast_evict', '')")
                db.execute("select pg_notify('holdfast_evict', '3:9')")
                assert not lost.wait(0.4), "garbage cost a holder its lock"  # looked at every 0.1 s
                db.execute("select pg_notify('holdfast_evict', '3:8')")
                assert lost.wait(PATIENCE), "the courier is dead"
