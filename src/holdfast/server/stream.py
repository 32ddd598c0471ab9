"""Server-sent events: each reader is told what changed, at its own pace, until it or the server ends."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Final

from fastapi import HTTPException
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ..agents.database import is_unavailable
from ..agents.view import Position
from .service import Service

_log = logging.getLogger("holdfast.server")

LOOK_SECONDS: Final = 0.25
QUIET_SECONDS: Final = 15.0
"""After so long without news a comment is sent, so that everybody between knows the connection lives."""

Check = Callable[[], Awaitable[object]]


class ChangeStream(Response):
    media_type = "text/event-stream"

    def __init__(self, service: Service, tenant: str, after: Position, check: Check) -> None:
        """``check`` raises an ``HTTPException`` when the reader's token is good no longer."""
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        self._service = service
        self._tenant = tenant
        self._after = after
        self._check = check
        del self.headers["content-length"]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gone = asyncio.create_task(_hung_up(receive))
        ending = asyncio.create_task(self._service.ending.wait())
        telling = asyncio.create_task(self._tell(send))
        self._service.streams += 1
        try:
            await asyncio.wait((gone, ending, telling), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._service.streams -= 1
            for task in (gone, ending, telling):
                task.cancel()
            outcomes = await asyncio.gather(gone, ending, telling, return_exceptions=True)
        if isinstance(outcomes[2], TimeoutError):
            # The response is left unfinished, so the connection is closed. The reader can come back and go on.
            _log.info("a reader took nothing and was dropped", extra={"action": "stream_dropped"})
        elif isinstance(outcomes[2], HTTPException) or outcomes[1] is True:
            await send({"type": "http.response.body", "body": b""})
        elif isinstance(outcomes[2], Exception):
            raise outcomes[2]

    async def _tell(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await self._send(send, f"retry: 1000\nid: {self._after}\n\n")
        quiet = 0.0
        while True:
            text = await self._news()
            if text or quiet >= QUIET_SECONDS:
                await self._send(send, text or ": still here\n\n")
                quiet = 0.0
            await asyncio.sleep(LOOK_SECONDS)
            quiet += LOOK_SECONDS

    async def _news(self) -> str:
        try:
            await self._check()
            changes = await self._service.view.changes(self._tenant, self._after)
        except Exception as error:
            if not is_unavailable(error):
                raise
            return ""  # it will be back
        if changes:
            self._after = changes[-1][0]
        return "".join(f"id: {position}\nevent: change\ndata: {json.dumps(change)}\n\n" for position, change in changes)

    async def _send(self, send: Send, text: str) -> None:
        async with asyncio.timeout(self._service.settings.stream_patience):
            await send({"type": "http.response.body", "body": text.encode(), "more_body": True})


async def _hung_up(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
