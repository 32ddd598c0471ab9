"""Ctrl-C at every point of taking and releasing a lock, one after the other.

The interpreter looks for signals when a function begins and after every call, so these are the points. There is one
that nothing written in Python can see to: the beginning of ``__exit__`` itself.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import holdfast
from holdfast import LockError, Locks, schema
from holdfast.testing import PATIENCE

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
    return postgres if request.param == "advisory" else f"{postgres}{'&' if '?' in postgres else '?'}mode=lease"


class Holder:
    """Somebody else who has the lock, and lets it go while it is waited for."""

    def __init__(self, locks: Locks, key: str) -> None:
        self._locks, self._key = locks, key
        self._inside = threading.Event()
        self._thread = threading.Thread(target=self._hold)
        self._thread.start()
        assert self._inside.wait(PATIENCE)

    def _hold(self) -> None:
        with self._locks.hold(self._key, wait=PATIENCE):
            self._inside.set()
            threading.Event().wait(0.002)

    def join(self) -> None:
        self._thread.join(PATIENCE)


@pytest.mark.filterwarnings("ignore::ResourceWarning")  # of what was struck before anybody knew it
@pytest.mark.parametrize("how", ["free", "waited for", "many"])
def test_ctrl_c_at_any_point_leaves_the_lock_free(url: str, how: str) -> None:
    with ExitStack() as clients:
        locks, others = (clients.enter_context(Locks.from_url(url, order="off")) for _ in range(2))
        for client in (locks, others):
            with client.hold("connected"):
                pass
        for point in range(POINTS):
            keys = [f"struck-{how}-{point}-{number}" for number in range(3 if how == "many" else 1)]
            holder = Holder(others, keys[0]) if how == "waited for" else None

            def work(keys: list[str] = keys) -> None:
                with locks.hold_many(keys, wait=PATIENCE) if how == "many" else locks.hold(keys[0], wait=PATIENCE):
                    pass

            place = strikes(point, work)
            if holder is not None:
                holder.join()
            for key in keys:
                try:
                    others.hold(key, wait=PATIENCE / 4).__enter__()
                except LockError as error:
                    raise AssertionError(f"it was struck at {place}") from error
            if place is None:
                break
        else:
            raise AssertionError(f"more than {POINTS} points?")
        assert point > 50
