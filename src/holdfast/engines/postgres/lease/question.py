"""What is asked about leases: one statement, always driven by the hub's courier, whoever asks."""

from __future__ import annotations

from ....flow import TaskWakeup, ThreadWakeup, Wakeup
from ..requests import Ask


class Question(Ask):
    """An effect. A caller that leaves (deadline, cancelled task, Ctrl-C at any line) has no connection in its hands."""

    @property
    def urgent(self) -> bool:  # type: ignore[override]
        """A lease must not run out because a crowd asks for others."""
        return self.statement == "lease_extend"

    def block(self) -> None:
        wakeup = ThreadWakeup()
        self._begin(wakeup)
        wakeup.sleep(self.deadline).block()

    async def suspend(self) -> None:
        if self.wakeup is None:  # else it was asked before, and its caller was cancelled and has come back
            self._begin(TaskWakeup())
        assert self.wakeup is not None
        await self.wakeup.sleep(self.deadline).suspend()

    def _begin(self, wakeup: Wakeup) -> None:
        self.wakeup = wakeup
        try:
            with self._hub.mutex:  # until the courier has it: a block that the collector ends here must not wait
                self._hub.queue(self, next(iter(self._hub.shared), None))
                self.sleeps = False  # it cannot be offered the duty
                self._leave_to_courier()
        except BaseException:
            self._hub.nobody_sleeps(self)
            self._leave_to_courier()  # twice does no harm: nobody else drives these connections
            raise

    def _leave_to_courier(self) -> None:
        if self.serves and self.connection is not None:
            self._hub.drive_soon(self.connection)
