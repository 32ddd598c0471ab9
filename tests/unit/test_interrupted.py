"""Faults that need bad luck, made certain: Ctrl-C or the collector at a bad moment, a loss before the body began."""

import asyncio
import gc
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from addresses import with_option
from holdfast import AsyncLocks, BackendUnavailable, LockError, LockLost, Locks, NotAcquired, WouldDeadlock, schema
from holdfast.engines.file.engine import FileEngine
from holdfast.engines.memory import MemoryEngine
from holdfast.flow import Flow
from holdfast.keys import Key
from holdfast.testing import PATIENCE, Child, Stopwatch
from holdfast.testing._async.part import until_waiting
from holdfast.ticket import State, Ticket


@pytest.fixture(autouse=True)
def _no_callbacks_of_the_collector() -> Iterator[None]:
    """Ctrl-C inside one (Hypothesis has one) is swallowed there, and nobody would see it."""
    kept = gc.callbacks.copy()
    gc.callbacks.clear()
    yield
    gc.callbacks.extend(kept)


@pytest.fixture(params=["memory", "file", "postgres", "lease table", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "lease table":
        server = str(request.getfixturevalue("holdfast_postgres_url"))
        schema.upgrade(server)
        return with_option(server, "mode=lease")
    if request.param == "postgres":
        return str(request.getfixturevalue("holdfast_postgres_url"))
    if request.param == "redis":
        return str(request.getfixturevalue("holdfast_redis_url"))
    return tmp_path.as_uri() if request.param == "file" else f"memory://{tmp_path}"


def test_ctrl_c_at_any_instant_of_a_wait_leaves_nothing(url: str) -> None:
    dice, locks = random.Random(1), Locks.from_url(url)

    def strike(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, strike)
    try:
        for _ in range(300):
            inside, finish = threading.Event(), threading.Event()

            def hold(inside: threading.Event = inside, finish: threading.Event = finish) -> None:
                with locks.hold("k", wait=PATIENCE):
                    inside.set()
                    finish.wait(PATIENCE)

            holder = threading.Thread(target=hold)
            holder.start()
            inside.wait(PATIENCE)
            try:
                signal.setitimer(signal.ITIMER_REAL, dice.uniform(1e-6, 2e-4))
                try:
                    locks.hold("k", wait=dice.choice([5e-5, 0.05])).__enter__()
                finally:
                    signal.setitimer(signal.ITIMER_REAL, 0)
            except (KeyboardInterrupt, NotAcquired):
                pass
            finish.set()
            holder.join(PATIENCE)
            with locks.hold("k", wait=PATIENCE):
                pass
    finally:
        signal.signal(signal.SIGALRM, before)


ABANDON = """
import gc
from holdfast import Locks
locks = Locks.from_url({url!r})
def block(key):
    me = yield
    with locks.hold(key):
        yield
gc.set_threshold({threshold})
for number in range(500):
    generator = block(f"a{{number}}")
    next(generator)
    generator.send(generator)  # a circle: only the collector can end it, wherever it runs
    with locks.hold("b"):
        pass
print("worked")
"""


@pytest.mark.parametrize("threshold", [1, 2, 3])
def test_the_collector_may_end_blocks_while_another_is_entered(url: str, threshold: int) -> None:
    script = ABANDON.format(url=url, threshold=threshold)
    outcome = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE)
    assert outcome.stdout == "worked\n", outcome.stderr


@pytest.mark.parametrize("state", ["inside", "granted"])
def test_a_task_whose_loop_was_closed_gives_its_lock_back_when_collected(url: str, state: str) -> None:
    locks, plain = AsyncLocks.from_url(url), Locks.from_url(url)

    def leave_behind() -> None:
        loop = asyncio.new_event_loop()

        async def work() -> None:
            async with locks.hold("k"):
                await loop.create_future()

        task = loop.create_task(work())
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        loop.call_later(0.05, loop.stop)
        if state == "inside":
            loop.run_forever()
        else:
            with plain.hold("k"):
                loop.run_forever()
        loop.close()

    leave_behind()
    gc.collect()
    with plain.hold("k", wait=PATIENCE):
        pass


@pytest.mark.parametrize("wait", [None, 5])
def test_evicted_before_it_woke_is_a_loss_not_a_timeout(url: str, wait: float | None) -> None:
    async def main() -> None:
        locks, blocking = AsyncLocks.from_url(url), Locks.from_url(url)
        block = blocking.hold("k")
        held = block.__enter__()
        waiter = asyncio.create_task(locks.hold("k", wait=wait).__aenter__())
        await until_waiting(locks, "k")
        held.release()  # to the waiter, who cannot run before this task waits for something
        assert blocking.evict("k")
        with pytest.raises(LockLost):
            await waiter
        block.__exit__(None, None, None)

    asyncio.run(main())


def test_a_stamp_never_goes_to_another_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    locks, victim = Locks.from_url((tmp_path / "locks").as_uri()), tmp_path / "victim"
    victim.write_text("precious")
    opened: list[int] = []
    stamp = FileEngine._stamp

    def evicted_first(engine: FileEngine, ticket: Ticket) -> None:
        assert locks.evict("k")
        opened.extend(os.open(victim, os.O_RDWR) for _ in range(2))  # they get the numbers that were just freed
        stamp(engine, ticket)

    monkeypatch.setattr(FileEngine, "_stamp", evicted_first)
    try:
        with pytest.raises(LockLost):
            locks.hold("k").__enter__()
        assert victim.read_text() == "precious"
    finally:
        for descriptor in opened:
            os.close(descriptor)


def test_no_thread_to_be_had_is_an_error_and_wedges_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    locks, child = Locks.from_url(tmp_path.as_uri()), Child(tmp_path.as_uri())
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "holdfast-flock":
            raise RuntimeError("can't start new thread")
        start(thread)

    try:
        child.ask("hold", "k")
        with monkeypatch.context() as patch:
            patch.setattr("holdfast.engines.file.blockers._idle", [])
            patch.setattr(threading.Thread, "start", refuse)
            with pytest.raises(BackendUnavailable, match="thread"):
                locks.hold("k", wait=PATIENCE).__enter__()
        child.ask("release")
        with locks.hold("k", wait=PATIENCE):
            pass
    finally:
        child.end()


def test_a_loss_is_told_once_also_in_the_moment_of_entering() -> None:
    for _ in range(300):
        ticket = Ticket(Key.of("k"), "wire", object)  # type: ignore[arg-type]
        ticket.granted()
        told: list[int] = []
        start = threading.Barrier(2)

        def lose(ticket: Ticket = ticket, start: threading.Barrier = start) -> None:
            start.wait()
            ticket.lose("evicted")

        thread = threading.Thread(target=lose)
        thread.start()
        start.wait()
        ticket.tell_when_lost(lambda told=told: told.append(1))  # type: ignore[misc]
        thread.join()
        assert told == [1]
        assert ticket.state is State.LOST


def test_hold_many_that_loses_one_while_it_waits_for_the_next_says_so() -> None:
    async def main() -> None:
        locks, operator = AsyncLocks.from_url("memory://many-lost"), AsyncLocks.from_url("memory://many-lost")
        async with operator.hold("b"):
            job = asyncio.create_task(locks.hold_many(["a", "b"], wait=PATIENCE).__aenter__())
            await asyncio.sleep(0.02)
            assert await operator.evict("a")
            with pytest.raises(LockLost):
                await job
            assert job.cancelling() == 0

    asyncio.run(main())


def test_a_block_of_many_is_entered_once_and_keeps_its_locks() -> None:
    locks = Locks.from_url("memory://many-once")
    block = locks.hold_many(["a", "b"])
    with block:
        with pytest.raises(LockError, match="entered before"):
            block.__enter__()
        assert len(locks.holders()) == 2


class Unwilling(MemoryEngine):
    """Is interrupted in its first release, after the fact."""

    interruption: BaseException | None = None

    def drop(self, ticket: Ticket) -> bool:
        return False

    def release(self, ticket: Ticket) -> Flow[None]:
        yield from super().release(ticket)
        interruption, self.interruption = self.interruption, None
        if interruption is not None:
            raise interruption


def test_an_interrupted_release_of_many_lets_the_others_go() -> None:
    engine = Unwilling("many-interrupted")
    locks = Locks(engine)
    with pytest.raises(GeneratorExit):
        with locks.hold_many(["a", "b", "c"]):
            engine.interruption = GeneratorExit()
    assert locks.holders() == []


def test_one_failing_release_does_not_keep_close_from_the_others() -> None:
    engine = Unwilling("close-fails")
    locks = Locks(engine)
    for key in ("a", "b", "c"):
        locks.hold(key).__enter__()
    engine.interruption = BackendUnavailable()
    with pytest.raises(BackendUnavailable):
        locks.close()
    assert Locks(MemoryEngine("close-fails")).holders() == []


def test_an_outside_cancellation_wins_also_in_a_task_that_did_not_enter_the_block() -> None:
    async def main() -> None:
        locks = AsyncLocks.from_url("memory://other-task")
        block = locks.hold("k")
        await asyncio.create_task(block.__aenter__())  # this task is done, the block goes on in another
        inside = asyncio.Event()

        async def work() -> None:
            try:
                inside.set()
                await asyncio.sleep(PATIENCE)
            except BaseException as error:
                await block.__aexit__(type(error), error, None)
                raise

        task = asyncio.create_task(work())
        await inside.wait()
        assert await locks.evict("k")
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(main())


def test_a_blocking_wait_in_a_loop_for_what_its_own_thread_holds_is_refused() -> None:
    locks = Locks.from_url("memory://around")

    async def main() -> None:
        watch = Stopwatch()
        with pytest.raises(WouldDeadlock):
            locks.hold("k", wait=PATIENCE).__enter__()
        assert watch.awake < 1

    with locks.hold("k"):
        asyncio.run(main())
