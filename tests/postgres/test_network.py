"""A network that goes silent or breaks: callers keep to their deadlines, holders are told, nothing is left behind."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future

import pytest
from eyes import Server, wait_until
from pg_proxy import Proxy, proxy

from holdfast import BackendUnavailable, LockLost, Locks, NotAcquired
from holdfast.testing import PATIENCE, Stopwatch

OVERRUN = 0.5
"""Seconds that a call may end after its deadline."""
TOLD = 1.0
"""Seconds in which a loss is told."""


@pytest.fixture
def network(url: str) -> Iterator[Proxy]:
    with proxy(url) as between:
        yield between


def test_a_holder_behind_a_cut_connection_is_told(network: Proxy) -> None:
    told = threading.Event()
    with Locks.from_url(network.url) as locks:
        with pytest.raises(LockLost):
            with locks.hold(4, 1, on_lost=lambda held: told.set()):
                watch = Stopwatch()
                network.cut()
                assert told.wait(PATIENCE)
                print(f"loss told after {watch.awake:.3f} s")
                assert watch.awake < TOLD, "the loss was not told in time"
        with locks.hold(4, 1, wait=PATIENCE) as held:  # a new connection by itself
            held.check()


def frozen_call(locks: Locks, key: int, wait: float) -> None:
    """A call that ends at its deadline, not before and not much later."""

    def call() -> None:
        watch = Stopwatch()
        with pytest.raises((NotAcquired, BackendUnavailable)) as caught:
            locks.hold(4, key, wait=wait).__enter__()
        assert watch.elapsed >= wait and watch.awake < wait + OVERRUN, caught.value

    in_time(call, PATIENCE)


def in_time(call: Callable[[], None], seconds: float) -> None:
    """Makes the call in a thread, so that a test whose call hangs fails."""
    outcome: Future[None] = Future()

    def make() -> None:
        try:
            outcome.set_result(call())
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=make, daemon=True).start()
    try:
        outcome.result(seconds)
    except TimeoutError:
        raise AssertionError("the call hangs") from None


@pytest.mark.parametrize("connected", [True, False])
def test_a_caller_of_a_silent_server_keeps_its_deadline(network: Proxy, server: Server, connected: bool) -> None:
    with Locks.from_url(network.url) as locks:
        if connected:
            with locks.hold(4, 2):
                pass
        network.freeze()
        frozen_call(locks, 2, 0.3)
        network.thaw()
        with locks.hold(4, 2, wait=PATIENCE):
            pass
    wait_until(lambda: not server.advisory_locks(2), "the abandoned try was granted, and left")


def test_what_an_abandoned_try_got_is_given_back_and_the_other_locks_stay(network: Proxy, server: Server) -> None:
    with Locks.from_url(network.url) as locks, locks.hold(4, 3) as other:
        network.freeze_answers_after(0)  # the server does grant it
        frozen_call(locks, 4, 0.2)
        wait_until(lambda: server.advisory_locks(4), "the server did not hear of the try")
        network.thaw()
        wait_until(lambda: not server.advisory_locks(4), "the abandoned try's lock was left")
        other.check()
        assert server.advisory_locks(3), "the other lock of that connection is gone"


def test_an_answer_that_stops_half_way_stops_nobody_else(network: Proxy, server: Server) -> None:
    """The rest of an answer may come late. Whoever reads it must not block in it, least of all the courier."""
    with Locks.from_url(network.url) as locks:
        with locks.hold(4, 5):
            pass
        connection = locks._client.engine._hub.shared[0]  # type: ignore[attr-defined]
        # An answer is 4 messages; with less than the last (ready, 6 bytes) the result is there but not its end.
        with Locks.from_url(network.url, max_waiting=3) as other:
            with other.hold(4, 55):
                pass
            for missing in (6, 3, 20, 40):
                network.freeze_answers_after(_answer_size() - missing)
                frozen_call(locks, 5, 0.2)
                wait_until(lambda: connection.trip is not None, "nobody is on the round trip")
                job = threading.Event()
                connection.hub.courier.call(job.set)
                assert job.wait(PATIENCE), f"the courier blocks in half an answer ({missing} bytes short)"
                network.thaw()
                wait_until(lambda: not connection.duty, "the round trip did not end")
    wait_until(lambda: not server.advisory_locks(5), "a lock was left")


def _answer_size() -> int:
    """Bytes of the server's answer to a try: bind complete, row description, one row, command complete, ready."""
    description = 7 + len("pg_try_advisory_lock") + 1 + 18
    return 5 + description + 12 + len("SELECT 1") + 6 + 6


WAITER = """
import sys
from holdfast import Locks
locks = Locks.from_url(sys.argv[1])
kept = locks.hold(4, 6)
handle = kept.__enter__()
print("ready", flush=True)
sys.stdin.readline()
try:
    print("asking", flush=True)
    locks.hold(4, 7, wait=60).__enter__()
except KeyboardInterrupt:
    print("interrupted", flush=True)
sys.stdin.readline()
handle.check()
print("still held", flush=True)
sys.stdin.readline()
with locks.hold(4, 7, wait=5):
    print("again", flush=True)
sys.stdin.readline()
kept.__exit__(None, None, None)
locks.close()
print("closed", flush=True)
"""


def test_ctrl_c_gets_out_of_a_silent_round_trip_at_once(network: Proxy, server: Server) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", WAITER, network.url], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )

    def next_line(send: bool = True) -> str:
        assert child.stdin is not None and child.stdout is not None
        if send:
            child.stdin.write("\n")
            child.stdin.flush()
        return child.stdout.readline().strip()

    try:
        assert next_line(send=False) == "ready"
        network.freeze_answers_after(0)
        assert next_line() == "asking"
        wait_until(lambda: server.advisory_locks(7), "the server did not hear of the try")
        watch = Stopwatch()
        os.kill(child.pid, signal.SIGINT)
        assert next_line(send=False) == "interrupted"
        took = watch.awake
        print(f"out after {took:.3f} s")
        assert took < OVERRUN
        network.thaw()
        wait_until(lambda: not server.advisory_locks(7), "the interrupted try's lock was left")
        assert server.advisory_locks(6), "the other lock of that connection is gone"
        assert next_line() == "still held"
        assert next_line() == "again"
        assert next_line() == "closed"
    finally:
        child.kill()
        for pipe in (child.stdin, child.stdout):
            assert pipe is not None
            pipe.close()
        child.wait()


def test_a_release_on_a_silent_server_ends_and_says_so(
    network: Proxy, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.engines.postgres import requests

    with Locks.from_url(network.url) as locks:

        def hold() -> None:
            watch = Stopwatch()
            with pytest.raises(BackendUnavailable, match="did not confirm"):
                with locks.hold(4, 8):
                    network.freeze()
                    watch.restart()
            assert watch.awake < 0.3 + OVERRUN

        try:
            with monkeypatch.context() as impatient:
                impatient.setattr(requests, "ANSWER_SECONDS", 0.3)
                in_time(hold, PATIENCE)
        finally:
            network.thaw()
        wait_until(lambda: not server.advisory_locks(8), "it was never released")
        with locks.hold(4, 8, wait=PATIENCE):
            pass
