"""How sync and async share their logic: it is written once, as generators, and this file holds all that differs.

A *flow* is a generator that does the work and yields an *effect* wherever it has to wait. A sync client drives the flow
with ``run``, which blocks the thread in each effect; an async client with ``run_async``, which suspends the task. An
interruption of the wait (Ctrl-C, a cancelled task) is thrown into the flow at that very ``yield``: the cleaning up is
written once, too.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Awaitable, Callable, Generator
from math import inf
from threading import TIMEOUT_MAX
from threading import Lock as Mutex
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar
from weakref import WeakValueDictionary

from .deadline import Deadline
from .owner import running_loop

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop, Future

T = TypeVar("T")


class Effect(Protocol):
    """Something to wait for, in either way. Who is cancelled in ``suspend`` may come back and wait on."""

    def block(self) -> Any: ...

    def suspend(self) -> Awaitable[Any]: ...


Flow = Generator[Effect, Any, T]


class Wakeup(Protocol):
    """Where one waiter sleeps. ``wake`` may be called from any thread, under a mutex; once is enough."""

    def wake(self) -> bool:
        """False if nobody can be woken here any more (the waiter's loop is closed)."""
        ...

    def sleep(self, deadline: Deadline) -> Effect:
        """The effect of waiting for ``wake``, to the deadline at most. What comes of it is the ticket's state."""
        ...


class ThreadWakeup:
    """A sleeping thread: a lock that the waker opens. The wait can be interrupted by a signal's handler."""

    __slots__ = ("_deadline", "_gate")

    def __init__(self) -> None:
        self._gate = Mutex()
        self._gate.acquire()

    def wake(self) -> bool:
        try:
            self._gate.release()
        except RuntimeError:  # woken before
            pass
        return True

    def sleep(self, deadline: Deadline) -> Effect:
        self._deadline = deadline
        return self

    def block(self) -> None:
        remaining = self._deadline.remaining
        self._gate.acquire(timeout=-1 if remaining == inf else min(remaining, TIMEOUT_MAX))

    async def suspend(self) -> None:
        raise RuntimeError("a thread's wakeup cannot suspend a task")


class _Bell:
    """Rouses sleeping tasks of one loop from other threads: all that are due with one call, each of which costs a
    system call. It lives in the loop's own queue, and goes with it."""

    __slots__ = ("__weakref__", "due")

    def __init__(self) -> None:
        self.due: deque[TaskWakeup] = deque()

    def rouse_all(self) -> None:
        _bells.pop(id(running_loop()), None)  # first: who comes from now on needs a new one
        while self.due:
            self.due.popleft().rouse()


_bells: WeakValueDictionary[int, _Bell] = WeakValueDictionary()


class TaskWakeup:
    """A sleeping task: a future of its loop, which may be another than the waker's."""

    __slots__ = ("_deadline", "_future", "_roused", "loop")

    def __init__(self) -> None:
        loop = running_loop()
        assert loop is not None, "an async client is used outside an event loop"
        self.loop: AbstractEventLoop = loop
        self._future: Future[None] | None = None
        self._roused = False

    def wake(self) -> bool:
        if running_loop() is self.loop:
            self.rouse()
            return True
        if self.loop.is_closed():  # with this waiter in it
            return False
        bell = _bells.get(id(self.loop))
        if bell is not None:
            bell.due.append(self)
            if _bells.get(id(self.loop)) is bell:
                return True
            # It has rung meanwhile, and may have been emptied before this one came.
        bell = _Bell()
        bell.due.append(self)
        try:
            _bells[id(self.loop)] = bell
            self.loop.call_soon_threadsafe(bell.rouse_all)
        except RuntimeError:  # closed in this very moment
            return False
        except BaseException:  # Ctrl-C: nobody may rely on a bell that does not ring
            _bells.pop(id(self.loop), None)
            raise
        return True

    def sleep(self, deadline: Deadline) -> Effect:
        self._deadline = deadline
        return self

    def block(self) -> None:
        raise RuntimeError("a task's wakeup cannot block a thread")

    def suspend(self) -> Awaitable[None]:
        if self._roused:
            return _AT_ONCE
        self._future = future = self.loop.create_future()  # another, if the last one was cancelled with its task
        at = self._deadline.at
        if at - monotonic() > _DOZE:
            if at != inf:
                _dozing_in(self.loop).append(self)
        else:
            self.set_alarm()
        return future

    def set_alarm(self) -> None:
        future = self._future
        if future is not None and not future.done():
            alarm = self.loop.call_later(self._deadline.remaining, self.rouse)
            future.add_done_callback(lambda _: alarm.cancel())

    def rouse(self) -> None:
        self._roused = True
        future = self._future
        if future is not None and not future.done():
            future.set_result(None)


class _AtOnce:
    def __await__(self) -> Generator[Any, Any, None]:
        yield from ()


_AT_ONCE: Final = _AtOnce()
_DOZE: Final = 0.05
"""Seconds. Most waits are shorter than this, and a timer for each would cost more than the wait."""


class _Dozing(deque[TaskWakeup]):
    """The waits of one loop that have just begun. It lives in the loop's own queue, like a bell, and goes with it."""

    __slots__ = ()

    def set_alarms(self) -> None:
        """For those that are not so short after all."""
        _dozings.pop(id(running_loop()), None)
        while self:
            self.popleft().set_alarm()


_dozings: WeakValueDictionary[int, _Dozing] = WeakValueDictionary()


def _dozing_in(loop: AbstractEventLoop) -> _Dozing:
    dozing = _dozings.get(id(loop))
    if dozing is None:
        dozing = _Dozing()
        loop.call_later(_DOZE, dozing.set_alarms)
        _dozings[id(loop)] = dozing  # last: nobody may rely on one that Ctrl-C kept from its timer
    return dozing


class Call:
    """A call that may block for a while (a scan of a folder). An async client makes it in a thread."""

    __slots__ = ("_arguments", "_function", "_under_way")

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self._function = function
        self._arguments = arguments
        self._under_way: Future[Any] | None = None

    def block(self) -> Any:
        return self._function(*self._arguments)

    async def suspend(self) -> Any:
        asyncio = sys.modules["asyncio"]
        if self._under_way is None:
            self._under_way = asyncio.get_running_loop().run_in_executor(None, self.block)
        return await asyncio.shield(self._under_way)


def at_once(value: T) -> Flow[T]:
    """A flow that has nothing to wait for."""
    yield from ()
    return value


def run(flow: Flow[T]) -> T:
    """Drives a flow, blocking this thread."""
    try:
        effect = next(flow)
        while True:
            try:
                outcome = effect.block()
            except BaseException as interruption:  # the flow decides what becomes of it
                effect = flow.throw(interruption)
            else:
                effect = flow.send(outcome)
    except StopIteration as done:
        result: T = done.value
        return result
    finally:
        flow.close()  # Ctrl-C between two lines of this function did not reach the flow: it must clean up, and now


async def run_async(flow: Flow[T]) -> T:
    """Drives a flow, suspending this task."""
    try:
        effect = next(flow)
        while True:
            try:
                outcome = await effect.suspend()
            except BaseException as interruption:  # the flow decides what becomes of it
                effect = flow.throw(interruption)
            else:
                effect = flow.send(outcome)
    except StopIteration as done:
        result: T = done.value
        return result


finish = run
"""Drives a flow that must come to its end (a release). A thread cannot be cancelled, so there is nothing to add."""


async def finish_async(flow: Flow[T]) -> T:
    """Drives a flow that must come to its end, suspending this task; a cancellation is passed on afterwards."""
    cancelled: BaseException | None = None
    try:
        effect = next(flow)
        while True:
            try:
                outcome = await effect.suspend()
            except sys.modules["asyncio"].CancelledError as cancellation:
                cancelled = cancellation  # and goes on with the wait
            except BaseException as interruption:  # the flow decides what becomes of it
                effect = flow.throw(interruption)
            else:
                effect = flow.send(outcome)
    except StopIteration as done:
        if cancelled is not None:
            raise cancelled from None
        result: T = done.value
        return result
