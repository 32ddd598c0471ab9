"""The handle of a held lock."""

from __future__ import annotations

from math import inf
from time import monotonic

from ..client import Client
from ..errors import Unsupported
from ..flow import finish_async, run_async
from ..keys import Key
from ..ticket import Ticket


class AsyncHeld:
    """What a holder has. Any thread or task may use and release it, not just the one that entered the block."""

    __slots__ = ("_client", "_ticket")

    def __init__(self, client: Client, ticket: Ticket) -> None:
        self._client = client
        self._ticket = ticket

    @property
    def key(self) -> Key:
        return self._ticket.key

    @property
    def fence(self) -> int:
        """A number that grows from grant to grant. Store it with what you write; refuse writes with a lower one."""
        fence = self._ticket.fence
        if not self.protected:
            raise Unsupported(f"fence ({self.key}): this block runs unprotected; nothing fences it", key=self.key)
        if fence is None:
            raise Unsupported(f"fence ({self.key}): this engine's grants carry no fence", key=self.key)
        return fence

    @property
    def protected(self) -> bool:
        """False if the engine was unavailable and the block was told to proceed: nobody else is kept out."""
        return self._ticket.protected

    @property
    def lost(self) -> bool:
        """Whether the lock was taken away or ran out. A handle that was released in good order is not lost."""
        return self._ticket.lost

    @property
    def remaining(self) -> float:
        """Seconds until the lease ends if it is not renewed; ``inf`` where the engine has no leases, 0 if not held."""
        ticket = self._ticket
        if ticket.lost or not ticket.held:
            return 0.0
        return ticket.expires_at if ticket.expires_at == inf else max(0.0, ticket.expires_at - monotonic())

    def check(self) -> None:
        """Raises ``LockLost`` if the lock is not ours any more, ``NotHeld`` if it was given up before."""
        self._ticket.check()

    async def extend(self, ttl: float | None = None) -> None:
        """Sets the remaining time of the lease: to ``ttl`` seconds, or to the time it was taken with. Never adds up."""
        await finish_async(self._client.extend(self._ticket, ttl))

    async def release(self) -> None:
        """Releases before the block ends; leaving the block is then silent. A second time raises ``NotHeld``."""
        await finish_async(self._client.release(self._ticket))

    async def detach(self) -> str:
        """Leaves the lock held when the block ends. The token returned takes it up again: ``locks.attach(token)``."""
        # Not to its end at any price: interrupted, nobody gets the token, and the block must release the lock.
        return await run_async(self._client.detach(self._ticket))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.key} {self._ticket.state}>"
