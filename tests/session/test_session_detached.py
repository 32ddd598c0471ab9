"""A lock that is taken in one step and kept for others, in whatever process they run."""

import asyncio
import json
import pickle
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest
from member import Member

from holdfast import DetachedLock, InvalidOption, LockError, LockLost, MutexAcquisitionFailed, NotHeld, SessionLock
from holdfast.testing import PATIENCE, Stopwatch

NewMember = Callable[[str], Member]


def run(test: Any) -> None:
    asyncio.run(asyncio.wait_for(test, 3 * PATIENCE))


def test_taken_in_one_process_extended_and_released_in_others(
    url: str, session_key: str, new_member: NewMember
) -> None:
    first, second = new_member(url), new_member(url)

    async def main() -> None:
        state = await first.ask_async("acquire detached", session_key, "turn-1", 60)
        first.kill()  # the worker that ran the step
        detached = DetachedLock(**json.loads(json.dumps(state)))
        async with SessionLock(url) as lock:
            assert await lock.is_locked(session_key)
            async with lock.acquire(session_key, 0) as other_turn:
                assert not other_turn
            assert await second.ask_async("extend by token", session_key, 90, detached.token)
            assert await second.ask_async("extend by token", session_key, 10, detached.token)
            assert await lock.extend(session_key, 60, token=detached)
            assert await second.ask_async("release", detached.token)
            assert not await lock.is_locked(session_key)
            assert not await second.ask_async("release", detached.token)
            assert not await second.ask_async("extend by token", session_key, 60, detached.token)

    run(main())


def test_a_retried_step_gets_its_own_lock_back_at_once(url: str, session_key: str, new_member: NewMember) -> None:
    worker = new_member(url)

    async def main() -> None:
        # It died after the lock was its, before anybody had the token: the lock is an orphan of five minutes.
        orphan = await worker.ask_async("acquire detached", session_key, "turn-1", 300)
        worker.kill()
        async with SessionLock(url) as lock:
            with pytest.raises(MutexAcquisitionFailed) as caught:
                await lock.acquire_detached(session_key, 0, owner="turn-2")
            assert caught.value.session_key == session_key
            watch = Stopwatch()
            detached = await lock.acquire_detached(session_key, 10, owner="turn-1", lock_timeout=300)
            assert watch.awake < 5
            assert detached.fence > orphan["fence"] and detached.token != orphan["token"]
            assert not await lock.release(orphan["token"])
            assert not await lock.extend(session_key, 60, token=orphan["token"])
            assert await lock.is_locked(session_key)
            assert await lock.release(detached)

    run(main())


@pytest.mark.parametrize("one_object", [False, True])
def test_the_older_handle_of_the_same_turn_is_told(url: str, session_key: str, one_object: bool) -> None:
    async def main() -> None:
        async with SessionLock(url) as worker, SessionLock(url) as other:
            stale_worker = worker if one_object else other
            taken_anew = asyncio.Event()
            held = asyncio.Event()

            async def stale() -> None:
                async with stale_worker.acquire(session_key, owner="turn-1"):
                    held.set()
                    await taken_anew.wait()
                    await asyncio.sleep(PATIENCE)

            task = asyncio.create_task(stale())
            await held.wait()
            async with worker.acquire(session_key, 0, owner="turn-1") as mine:
                taken_anew.set()
                with pytest.raises(LockLost):
                    await task
                assert mine
                mine.check()
                assert await worker.extend(session_key, 20)
                assert one_object or not await stale_worker.extend(session_key, 20)

    run(main())


def test_a_step_that_takes_it_up_is_renewed_and_leaves_it_held_or_free(url: str, session_key: str) -> None:
    async def main() -> None:
        async with SessionLock(url, lock_timeout=3) as lock, SessionLock(url) as other:
            detached = await lock.acquire_detached(session_key, owner="turn-1")
            async with lock.attach(detached) as held:
                assert held.fence >= detached.fence
                await asyncio.sleep(4)  # longer than the lease
                held.check()
                assert await lock.extend(session_key, 60)
                token = await held.detach()
            with pytest.raises(NotHeld):
                await lock.attach(detached).__aenter__()
            assert await other.is_locked(session_key)
            async with other.attach(token):
                pass
            assert not await other.is_locked(session_key)

    run(main())


def test_a_cancelled_step_leaves_nothing_behind(url: str, session_key: str) -> None:
    async def main() -> None:
        async with SessionLock(url) as lock:
            for turns_of_the_loop in range(12):
                task = asyncio.create_task(lock.acquire_detached(session_key, owner=f"turn-{turns_of_the_loop}"))
                for _ in range(turns_of_the_loop):
                    await asyncio.sleep(0)
                task.cancel()
                try:
                    assert await lock.release(await task)
                except asyncio.CancelledError:
                    pass
                deadline = time.monotonic() + PATIENCE
                while await lock.is_locked(session_key):
                    assert time.monotonic() < deadline, f"a lock was left after {turns_of_the_loop} turns"
                    await asyncio.sleep(0.005)

    run(main())


def test_a_detached_lock_runs_out_by_itself(url: str, session_key: str) -> None:
    async def main() -> None:
        async with SessionLock(url) as lock:
            detached = await lock.acquire_detached(session_key, owner="turn-1", lock_timeout=0.5)
            watch = Stopwatch()
            async with lock.acquire(session_key, PATIENCE) as held:
                assert held and held.fence > detached.fence
                assert watch.awake < 3
                assert not await lock.release(detached)
                held.check()

    run(main())


def test_a_token_is_of_one_conversation_and_is_not_shown(url: str, session_key: str) -> None:
    async def main() -> None:
        async with SessionLock(url) as lock:
            detached = await lock.acquire_detached(session_key, owner="turn-1")
            with pytest.raises(InvalidOption, match="not of"):
                await lock.extend("other:session", token=detached)
            for bad in ("", "nonsense"):
                with pytest.raises(InvalidOption, match="token"):
                    await lock.release(bad)
            for odd in ("\0", "é", "\ud800", " "):
                assert not await lock.release(detached.token + odd)
                assert not await lock.extend(session_key, token=detached.token + odd)
            assert detached.token not in repr(detached)
            assert pickle.loads(pickle.dumps(detached)) == DetachedLock(**asdict(detached)) == detached
            assert await lock.release(detached)

    run(main())


def test_the_errors_survive_pickling_and_are_of_one_family() -> None:
    from holdfast import NotAcquired, SessionBusyError

    for kind in (SessionBusyError, MutexAcquisitionFailed):
        error = pickle.loads(pickle.dumps(kind("t:a:c:web")))
        assert type(error) is kind and error.session_key == "t:a:c:web" and "t:a:c:web" in str(error)
        assert isinstance(error, NotAcquired) and isinstance(error, LockError) and isinstance(error, TimeoutError)
        assert str(kind()) and kind().session_key is None
    assert not issubclass(SessionBusyError, MutexAcquisitionFailed)
