"""How a task waits for its next round: until it is told to look, or for so long."""

from __future__ import annotations

import asyncio


async def set_within(event: asyncio.Event, seconds: float) -> bool:
    """Whether the event was set in time. Can always be cancelled.

    Not so ``asyncio.wait_for`` before Python 3.12: being cancelled just when the event was set, it returned, and the
    task that was to end went on.
    """
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False
