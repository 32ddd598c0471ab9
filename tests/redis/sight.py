"""Eyes to see what is left in a server."""

import secrets
import socket
from typing import Any

from holdfast import AsyncHeld, Held
from waiting import wait_until


class Database:
    def __init__(self, redis: Any) -> None:
        self.redis = redis

    def keys(self) -> set[str]:
        return set(self.redis.scan_iter(count=1000)) - {"holdfast:database"}

    def locks(self) -> set[str]:
        """All keys but the fences, which stay for a while."""
        return {key for key in self.keys() if not key.endswith("}:grant")}

    def queue(self, name: str) -> list[str]:
        """The tokens of those who wait, in order."""
        return [entry.partition(" ")[0] for entry in self.redis.zrange(f"{{{name}}}:queue", 0, -1)]

    def connections(self, name: str = "holdfast") -> list[dict[str, Any]]:
        return [client for client in self.redis.client_list() if client["name"].startswith(name)]


def wait_until_renewed(*handles: Held | AsyncHeld) -> None:
    tickets = [held._ticket for held in handles]
    before = [ticket.expires_at for ticket in tickets]
    wait_until(
        lambda: all(ticket.expires_at > then for ticket, then in zip(tickets, before, strict=True)), "it is not renewed"
    )


def free_port() -> int:
    """Not of those that the system gives out by itself: nobody comes by it before the server does."""
    while True:
        port = 20_000 + secrets.randbelow(10_000)
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        return port
