"""What sync and async share, where it is hard to hit by using it."""

import asyncio
from collections import deque

from holdfast import flow
from holdfast.deadline import Deadline
from holdfast.testing import PATIENCE


class RingsFirst(deque[flow.TaskWakeup]):
    """A loop rouses its sleepers in the very moment in which another thread is about to add one."""

    def append(self, wakeup: flow.TaskWakeup) -> None:
        flow._bells.clear()
        super().append(wakeup)


def test_a_task_is_woken_also_while_its_loop_wakes_others() -> None:
    async def main() -> None:
        wakeup = flow.TaskWakeup()
        bell = flow._bells[id(asyncio.get_running_loop())] = flow._Bell()
        bell.due = RingsFirst()
        woken = asyncio.create_task(asyncio.to_thread(wakeup.wake))
        deadline = Deadline.after(PATIENCE)
        await wakeup.sleep(deadline).suspend()
        assert not deadline.passed
        assert await woken

    asyncio.run(main())
