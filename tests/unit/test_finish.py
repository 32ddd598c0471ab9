"""How a flow that must come to its end is driven by a task that is cancelled."""

import asyncio

import pytest

from holdfast.flow import Effect, Flow, finish_async


class Bell:
    """An effect that goes on by itself."""

    goes_on = True

    def __init__(self) -> None:
        self.event = asyncio.Event()
        self.waits = 0

    def block(self) -> None:
        raise NotImplementedError

    async def suspend(self) -> str:
        self.waits += 1
        await self.event.wait()
        return "rang"


class Once(Bell):
    """One that does not: its wait is protected by a task of its own."""

    goes_on = False


@pytest.mark.parametrize("kind", [Bell, Once])
def test_a_cancelled_task_finishes_first(kind: type[Bell]) -> None:
    async def main() -> None:
        bell, heard = kind(), list[str]()

        def flow() -> Flow[None]:
            effect: Effect = bell
            heard.append((yield effect))
            heard.append((yield effect))

        task = asyncio.create_task(finish_async(flow()))
        for _ in range(3):
            await asyncio.sleep(0)
            task.cancel()
        await asyncio.sleep(0)
        assert not task.done() and heard == []
        bell.event.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert heard == ["rang", "rang"]

    asyncio.run(main())


def test_an_error_of_the_flow_comes_before_the_cancellation() -> None:
    async def main() -> None:
        bell = Bell()

        def flow() -> Flow[None]:
            yield bell
            raise KeyError("the flow's own")

        task = asyncio.create_task(finish_async(flow()))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(0)
        bell.event.set()
        with pytest.raises(KeyError):
            await task

    asyncio.run(main())
