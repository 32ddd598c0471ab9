"""What is checked before any route is looked for: a page in somebody's browser must not be able to call this server.

DNS can be made to point a foreign name at 127.0.0.1, and any page can send a request there: so the name by which the
server is called (``Host``) must be one of its own, and the page that calls (``Origin``) must be its own.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


class Guard:
    def __init__(self, app: ASGIApp, hosts: Iterable[str] = ()) -> None:
        self._app = app
        self._hosts = LOCAL_NAMES | {host.lower().strip("[]") for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            problem = self._problem(scope["headers"])
            if problem is not None:
                await _refuse(send, problem)
                return
        await self._app(scope, receive, send)

    def _problem(self, headers: list[tuple[bytes, bytes]]) -> str | None:
        hosts = [value.decode("latin-1").lower() for name, value in headers if name == b"host"]
        if len(hosts) != 1 or not self._is_ours(hosts[0]):
            return "Host: this server is not called so"
        for name, value in headers:
            if name == b"origin" and not _is_at(value.decode("latin-1").lower(), hosts[0]):
                return "Origin: another site's page may not call this server"
        return None

    def _is_ours(self, host: str) -> bool:
        try:
            parts = urlsplit(f"//{host}")
            return parts.netloc == host and "@" not in host and parts.hostname in self._hosts and (parts.port or 1) > 0
        except ValueError:
            return False


def _is_at(origin: str, host: str) -> bool:
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and parts.netloc == host


async def _refuse(send: Send, problem: str) -> None:
    body = json.dumps({"detail": problem}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 403, "headers": headers})
    await send({"type": "http.response.body", "body": body})
