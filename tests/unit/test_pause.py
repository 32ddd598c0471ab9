"""A task that is told to end ends, whatever else happens at that moment."""

import asyncio

import pytest

from holdfast.pause import set_within
from holdfast.testing import PATIENCE


@pytest.mark.parametrize("steps", range(4), ids="cancelled {} steps after it was set".format)
def test_a_loop_that_is_cancelled_just_when_it_is_told_to_look_ends(steps: int) -> None:
    async def main() -> None:
        look = asyncio.Event()

        async def look_around() -> None:
            while True:
                await set_within(look, PATIENCE)
                look.clear()

        looking = asyncio.create_task(look_around())
        await asyncio.sleep(0.01)
        look.set()
        for _ in range(steps):
            await asyncio.sleep(0)
        looking.cancel()
        ended, _ = await asyncio.wait((looking,), timeout=PATIENCE / 2)
        assert ended

    asyncio.run(main())


def test_it_is_told_whether_the_event_was_set() -> None:
    async def main() -> None:
        event = asyncio.Event()
        assert await set_within(event, 0.01) is False
        event.set()
        assert await set_within(event, PATIENCE) is True

    asyncio.run(main())
