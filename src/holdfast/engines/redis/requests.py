"""What is asked of the server: an effect, in which a thread blocks or a task is suspended until the answer is there.

What was sent is never taken back. Whoever leaves (at its deadline, cancelled, by Ctrl-C) leaves the answer to be
received by somebody else; until then the request is not ``done``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...deadline import Deadline
from ...flow import Effect, TaskWakeup, ThreadWakeup, Wakeup
from ...owner import running_loop

if TYPE_CHECKING:
    from asyncio import Future

    from .link import Link
    from .wire import LoopWire


class Disconnected(Exception):
    """The connection ended before the answer came: what was asked may or may not have been done."""


class Request:
    __slots__ = (
        "_link", "_wire", "deadline", "done", "error", "future", "others", "payload", "replies", "sent", "wakeup",
        "wanted",
    )  # fmt: skip

    def __init__(self, link: Link, payload: bytes, deadline: Deadline, wanted: int = 1) -> None:
        self._link = link
        self._wire: LoopWire
        self.payload = payload
        self.deadline = deadline
        self.wanted = wanted
        """How many replies the payload brings."""
        self.replies: list[Any] = []
        self.sent = False
        self.done = False
        self.error: BaseException | None = None
        self.wakeup: ThreadWakeup | None = None
        self.future: Future[None] | None = None
        self.others: list[Wakeup] | None = None
        """Who else waits for its end."""

    @property
    def under_way(self) -> bool:
        """Whether the server may still come to it."""
        return self.sent and not self.done

    def deliver(self, reply: Any) -> bool:
        """Called by whoever receives. True if that was the last reply."""
        self.replies.append(reply)
        if len(self.replies) < self.wanted:
            return False
        self._end()
        return True

    def fail(self, error: BaseException) -> None:
        if not self.done:
            self.error = error
        self._end()  # also if it was answered: Ctrl-C may have struck before its thread was woken

    def _end(self) -> None:
        self.done = True
        if self.wakeup is not None:
            self.wakeup.wake()
        elif self.future is not None and not self.future.done() and not self.future.get_loop().is_closed():
            self.future.set_result(None)
        for wakeup in self.others or ():
            wakeup.wake()

    def block(self) -> None:
        wire = self._link.wire
        if wire is None:
            self.error, self.done = Disconnected("there is no connection"), True
        else:
            wire.exchange(self)

    async def suspend(self) -> None:
        loop = running_loop()
        assert loop is not None
        if self.done or (self.sent and self.deadline.passed):
            return
        if not self.sent:
            wire = self._link.wire_in(loop) or await self._link.open_in(loop, self.deadline)
            if wire is None:
                return
            self._wire = wire
        self.future = future = loop.create_future()
        if not self.sent:
            self._wire.send(self)
        try:
            await future
        finally:
            if not self.done:
                self._wire.left_alone()

    def ring(self) -> None:
        """Its deadline has passed."""
        if self.future is not None and not self.future.done():
            self.future.set_result(None)


class Ended:
    """The effect of waiting for the end of a request that somebody else made, and maybe left."""

    __slots__ = ("_deadline", "_request")

    def __init__(self, request: Request, deadline: Deadline) -> None:
        self._request = request
        self._deadline = deadline

    def block(self) -> None:
        self._at(ThreadWakeup()).block()

    async def suspend(self) -> None:
        await self._at(TaskWakeup()).suspend()

    def _at(self, wakeup: Wakeup) -> Effect:
        self._request.others = [*(self._request.others or ()), wakeup]
        if self._request.done:  # before it could see the wakeup
            wakeup.wake()
        return wakeup.sleep(self._deadline)
