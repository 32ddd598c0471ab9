"""How a flow that must come to its end is driven by a task that is cancelled."""

import asyncio
import threading

import pytest

from holdfast.deadline import Deadline
from holdfast.flow import Call, Flow, TaskWakeup, finish_async
from holdfast.testing import PATIENCE


class Bell:
    """An effect."""

    def __init__(self) -> None:
        self.event = asyncio.Event()

    def block(self) -> None:
        raise NotImplementedError

    async def suspend(self) -> None:
        await self.event.wait()

    def ring(self) -> None:
        self.event.set()


class Sleep:
    """A task's sleep until it is woken."""

    def __init__(self) -> None:
        self.effect = TaskWakeup()
        self.ring = self.effect.wake
        self.block, self.suspend = self.effect.block, self.effect.sleep(Deadline.after(60)).suspend


class Work:
    """A call in a thread, which must be made once, however often its caller is cancelled."""

    def __init__(self) -> None:
        self.calls, self._end = 0, threading.Event()
        self.ring = self._end.set
        call = Call(self._work)
        self.block, self.suspend = call.block, call.suspend

    def _work(self) -> None:
        self.calls += 1
        self._end.wait(PATIENCE)


@pytest.mark.parametrize("kind", [Bell, Sleep, Work])
def test_a_cancelled_task_finishes_first(kind: type[Bell] | type[Sleep] | type[Work]) -> None:
    async def main() -> None:
        effect, ended = kind(), list[bool]()

        def flow() -> Flow[None]:
            yield effect
            ended.append(True)

        task = asyncio.create_task(finish_async(flow()))
        for _ in range(3):
            await asyncio.sleep(0)
            task.cancel()
        await asyncio.sleep(0)
        assert not task.done() and not ended
        effect.ring()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended
        if isinstance(effect, Work):
            assert effect.calls == 1

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
        bell.ring()
        with pytest.raises(KeyError):
            await task

    asyncio.run(main())
