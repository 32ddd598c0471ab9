"""What the parts of the contract share: who is tested, and how a test sees what others do."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from ..._async.locks import AsyncLocks
from .crew import Job, pause

OVERRUN = 0.5
"""How much later than its deadline a wait may end on a busy machine. It is far less than a second deadline would be."""

STUCK = 5.0
"""Nothing short takes that long, not even in a crowd on a busy machine, unless it waits for somebody who is gone."""


class SomethingWrong(Exception):
    pass


async def until_waiting(locks: AsyncLocks, key: str, waiters: int = 1, unless: Job[Any] | None = None) -> None:
    """Returns when so many wait for the key, as far as the engine can tell, and have had a moment to do so.

    ``unless`` is a job that does not wait for long: it may be over before that is seen.
    """
    for _ in range(2000):
        if unless is not None and unless.done:
            return
        found = [holder for holder in await locks.holders() if holder.key == f"key:{key}"]
        if found and (found[0].waiting is None or found[0].waiting >= waiters):
            break
        await pause(0.005)
    else:
        raise AssertionError(f"{waiters} waiters for {key} were never seen")
    await pause(0.02)


async def is_free(locks: AsyncLocks, key: str) -> bool:
    async with locks.try_hold(key) as held:
        return held is not None


async def becomes_free(locks: AsyncLocks, key: str) -> bool:
    """After a wait that was over before the server had answered: what it may have got is given back, but later."""
    for _ in range(2000):
        if await is_free(locks, key):
            return True
        await pause(0.005)
    return False


class AsyncPart:
    """Subclass a part and give it a ``target``: a URL, or ``module:function`` for a function that makes the engine."""

    @pytest.fixture
    def target(self) -> str:
        raise NotImplementedError("override the fixture `target`")

    @pytest.fixture
    def key(self) -> str:
        return f"contract-{uuid4().hex}"
