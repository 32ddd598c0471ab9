"""The blocks that hold locks: what ``hold``, ``try_hold``, ``attach`` and ``hold_many`` return. Enter each once."""

from __future__ import annotations

from types import TracebackType

from ..client import Client
from ..deadline import Deadline
from ..errors import BackendUnavailable, LockError, NotHeld
from ..flow import finish_async, run_async
from ..ticket import Ticket
from .body import BLOCKS, Body, OnLost
from .held import AsyncHeld


class AsyncBlock:
    """One block around one lock."""

    __slots__ = ("_body", "_client", "_on_lost", "_secret", "_ticket")

    def __init__(self, client: Client, ticket: Ticket, on_lost: OnLost | None, secret: str | None = None) -> None:
        self._client = client
        self._ticket = ticket
        self._on_lost = on_lost
        self._secret = secret
        self._body: Body | None = None

    @property
    def waited(self) -> bool:
        """Whether it has stood in a queue, where the engine tells."""
        return self._ticket.waited

    async def enter(self, deadline: Deadline | None = None) -> AsyncHeld | None:
        """Acquires; None when busy."""
        client, ticket = self._client, self._ticket
        if ticket.owner is not None:
            raise LockError(
                f"{ticket.key}: this block was entered before; call hold() again for another", key=ticket.key
            )
        ticket.deadline = deadline or Deadline.after(ticket.wait)
        try:
            granted: bool | None
            try:
                engine = client.engine
                if not engine.ready:
                    await run_async(client.open(ticket))
                if self._secret is not None:
                    granted = await run_async(client.attach(ticket, self._secret))
                elif client.begin(ticket):
                    granted = engine.grab(ticket)
                    if granted is None:
                        granted = await run_async(engine.acquire(ticket))
                else:
                    granted = False
            except BackendUnavailable as error:
                granted = client.proceed(ticket, error)
            if not client.settle(ticket, granted):
                return None
            held = AsyncHeld(client, ticket)
            self._body = Body(ticket, held, self._on_lost)
            return held
        except BaseException as error:
            try:
                if BLOCKS or client.can_wait(ticket, error):
                    await finish_async(client.abandon(ticket))
                else:
                    client.let_go(ticket)
            except Exception as failure:  # must not take the place of a cancellation
                error.add_note(f"(and the release failed: {failure})")
            raise

    async def leave(self, error: BaseException | None) -> BaseException | None:
        """Releases, unless that was done; returns what the block is to end with."""
        if self._body is None:
            return error
        ending, ticket = error, self._ticket
        try:
            ending = self._body.end(error)
            if not BLOCKS and not self._client.can_wait(ticket, error):
                self._client.let_go(ticket)
            elif ticket.held:
                if not self._client.drop(ticket):
                    await finish_async(self._client.finish_release(ticket))
            elif ticket.lost:
                await finish_async(self._client.drop_lost(ticket))
        except NotHeld:
            pass  # released elsewhere in this very moment, which is as good
        except Exception as failure:
            if ending is None:
                return failure
            ending.add_note(f"(and the release failed: {failure})")
        except BaseException:
            self._client.let_go(ticket)  # if Ctrl-C struck before it was released
            raise
        return ending

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            ending = await self.leave(error)
        except (KeyboardInterrupt, SystemExit):
            self._client.make_sure(self._ticket)
            raise
        if ending is not None and ending is not error:
            raise ending


class AsyncHold(AsyncBlock):
    """Waits for the lock; raises ``NotAcquired`` when the deadline passes."""

    __slots__ = ()

    async def __aenter__(self) -> AsyncHeld:
        held = await self.enter()
        if held is None:
            raise self._client.not_acquired(self._ticket)
        return held


class AsyncTryHold(AsyncBlock):
    """Tries once; the block runs with None when the lock is busy."""

    __slots__ = ()

    async def __aenter__(self) -> AsyncHeld | None:
        return await self.enter()


class AsyncHoldMany:
    """Several locks, all or none, under one deadline."""

    __slots__ = ("_blocks", "_client", "_entered", "_positions", "_tickets")

    def __init__(self, client: Client, tickets: list[Ticket], positions: list[int], on_lost: OnLost | None) -> None:
        self._client = client
        self._tickets = tickets
        self._positions = positions
        self._blocks = [AsyncBlock(client, ticket, on_lost) for ticket in tickets]
        self._entered: list[AsyncBlock] = []

    async def __aenter__(self) -> list[AsyncHeld]:
        """The handles in the order in which the keys were given; a key that was given twice has one handle."""
        if self._entered:
            raise LockError("this block of hold_many() was entered before; call it again for another")
        deadline = Deadline.after(self._tickets[0].wait)
        handles: list[AsyncHeld] = []
        try:
            for block, ticket in zip(self._blocks, self._tickets, strict=True):
                self._entered.append(block)
                held = await block.enter(deadline)
                if held is None:
                    raise self._client.not_acquired(ticket)
                handles.append(held)
            return [handles[position] for position in self._positions]
        except BaseException as error:
            ending = await self._leave(error)
            if ending is not None and ending is not error:
                raise ending  # noqa: B904  one of those it had was lost, and says so; the cause is set
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            ending = await self._leave(error)
        except (KeyboardInterrupt, SystemExit):
            for block in self._entered:
                self._client.make_sure(block._ticket)
            raise
        if ending is not None and ending is not error:
            raise ending

    async def _leave(self, error: BaseException | None) -> BaseException | None:
        for block in reversed(self._entered):
            try:
                error = await block.leave(error)
            except BaseException as interruption:  # Ctrl-C, a cancellation: the others must be let go all the same
                if isinstance(interruption, KeyboardInterrupt | SystemExit):
                    self._client.make_sure(block._ticket)
                error = interruption
        return error
