"""Ctrl-C at every point of taking and releasing a lock, one after the other.

The interpreter looks for signals when a function begins and after every call, so these are the points. There is one
that nothing written in Python can see to: the beginning of ``__exit__`` itself.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import holdfast
from addresses import with_option
from holdfast import BackendUnavailable, LockError, LockLost, Locks, schema
from holdfast.owner import current
from holdfast.testing import PATIENCE, Stopwatch

PACKAGE = os.path.dirname(holdfast.__file__)
POINTS = 2000
"""More than there are."""


def strikes(point: int, work: Callable[[], None]) -> list[str] | None:
    """Where Ctrl-C struck; None if the work was done before it came to that point."""
    place: list[str] | None = None

    def strike(frame: FrameType, event: str, called: Any) -> None:
        nonlocal point, place
        code = frame.f_code
        if event not in ("call", "c_return") or not code.co_filename.startswith(PACKAGE) or code.co_name == "__exit__":
            return
        point -= 1
        if point == -1:
            sys.setprofile(None)
            place = [event, *places(frame)]
            raise KeyboardInterrupt

    sys.setprofile(strike)
    try:
        work()
    except KeyboardInterrupt:
        assert place is not None
    finally:
        sys.setprofile(None)
    return place


def places(frame: FrameType | None) -> Iterator[str]:
    while frame is not None and frame.f_code.co_filename.startswith(PACKAGE):
        yield f"{os.path.relpath(frame.f_code.co_filename, PACKAGE)}:{frame.f_lineno}"
        frame = frame.f_back


@pytest.fixture(params=["memory", "file", "advisory", "lease table", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param in ("memory", "file"):
        return f"{request.param}://{tmp_path}"
    if request.param == "redis":
        return str(request.getfixturevalue("holdfast_redis_url"))
    postgres = str(request.getfixturevalue("holdfast_postgres_url"))
    schema.upgrade(postgres)
    return postgres if request.param == "advisory" else with_option(postgres, "mode=lease")


class Other:
    """Somebody else who wants the lock, and has it for a moment."""

    def __init__(self, locks: Locks, key: str) -> None:
        self._locks, self._key = locks, key
        self.inside = threading.Event()
        self._thread = threading.Thread(target=self._hold)
        self._thread.start()

    def _hold(self) -> None:
        with self._locks.hold(self._key, wait=PATIENCE):
            self.inside.set()
            threading.Event().wait(0.002)

    def join(self) -> None:
        self._thread.join(PATIENCE)


@contextmanager
def crowd(locks: Locks) -> Iterator[None]:
    """Threads that use the same connections all the time, so that what is struck may be theirs as well."""
    stop = threading.Event()

    def work(number: int) -> None:
        while not stop.is_set():
            # Struck amid a round trip, a connection is not used again; those whose locks it held are told.
            with suppress(LockLost, BackendUnavailable), locks.hold(f"crowd-{number}", wait=PATIENCE):
                pass

    with ThreadPoolExecutor(3) as pool:
        working = [pool.submit(work, number) for number in range(3)]
        try:
            yield
        finally:
            stop.set()
    for each in working:
        each.result()


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # of what was struck before anybody knew it
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # if a finaliser was struck
@pytest.mark.parametrize("how", ["free", "waited for", "many", "in a crowd"])
def test_ctrl_c_at_any_point_leaves_the_lock_free(url: str, how: str) -> None:
    with ExitStack() as ending:
        locks, others = (ending.enter_context(Locks.from_url(url, order="off")) for _ in range(2))
        for client in (locks, others):
            with client.hold("connected"):
                pass
        if how == "in a crowd":
            ending.enter_context(crowd(locks))
        for point in range(POINTS):
            keys = [f"struck-{how}-{point}-{number}" for number in range(3 if how == "many" else 1)]
            holder = Other(others, keys[0]) if how == "waited for" else None
            assert holder is None or holder.inside.wait(PATIENCE)

            def work(keys: list[str] = keys) -> None:
                with locks.hold_many(keys, wait=PATIENCE) if how == "many" else locks.hold(keys[0], wait=PATIENCE):
                    pass

            watch = Stopwatch()
            place = strikes(point, work)
            assert watch.awake < PATIENCE / 4, f"struck at {place}, it took {watch.awake:.1f} s to end"
            if holder is not None:
                holder.join()
            for key in keys:
                try:
                    with others.hold(key, wait=PATIENCE / 4):
                        pass
                except LockError as error:
                    raise AssertionError(f"it was struck at {place}") from error
            assert not current(None).held, f"struck at {place}"
            if place is None:
                break
        else:
            raise AssertionError(f"more than {POINTS} points?")
        assert point > 50


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_ctrl_c_at_any_point_of_a_release_keeps_it_from_nobody_who_waits(url: str) -> None:
    with Locks.from_url(url, order="off") as locks:
        with locks.hold("connected"):
            pass
        for point in range(POINTS):
            heirs: list[Other] = []

            def work(key: str = f"handed-{point}", heirs: list[Other] = heirs) -> None:
                with locks.hold(key):
                    heirs.append(Other(locks, key))
                    threading.Event().wait(0.002)  # if it comes to wait only later, that is another case

            place = strikes(point, work)
            for heir in heirs:
                assert heir.inside.wait(PATIENCE / 4), f"struck at {place}"
                heir.join()
            assert not current(None).held, f"struck at {place}"
            if place is None:
                break
        assert heirs and point > 50
