"""An answer given before its request was read to the end, such as a refusal, must reach the sender all the same.

Closed with something unread, a connection is reset, and the reset may overtake the answer: the sender sees a broken
connection instead of a 401. So the answer is sent, whole, and what still comes is thrown away for a while before the
connection is closed: within bounds, since anybody can send without end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

LINGER_SECONDS: Final = 5.0
LINGER_BYTES: Final = 32 * 2**20


class Lingering:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and _brings_a_body(scope["headers"]):
            exchange = _Exchange(receive, send, told_to_wait=_waits_for_a_word(scope["headers"]))
            await self._app(scope, exchange.receive, exchange.send)
        else:
            await self._app(scope, receive, send)


class _Exchange:
    def __init__(self, receive: Receive, send: Send, *, told_to_wait: bool) -> None:
        self._receive = receive
        self._send = send
        self._unread = True
        self._unsent = told_to_wait
        """Whether the sender keeps its body until it is asked for, which ``receive`` does."""
        self._lingers = False

    async def receive(self) -> Message:
        self._unsent = False
        message = await self._receive()
        self._unread = message["type"] == "http.request" and message.get("more_body", False)
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start" and self._unread:
            self._lingers = not self._unsent
            message = {**message, "headers": [*message.get("headers", ()), (b"connection", b"close")]}
        elif message["type"] == "http.response.body" and self._lingers and not message.get("more_body", False):
            await self._send({**message, "more_body": True})  # whole as it is, but the connection stays
            await self._throw_away()
            message = {"type": "http.response.body", "body": b""}
        await self._send(message)

    async def _throw_away(self) -> None:
        left = LINGER_BYTES
        try:
            async with asyncio.timeout(LINGER_SECONDS):
                while self._unread and left > 0:
                    left -= len((await self.receive()).get("body", b""))
        except TimeoutError:
            pass


def _brings_a_body(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    return any(name == b"transfer-encoding" or (name == b"content-length" and value != b"0") for name, value in headers)


def _waits_for_a_word(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    return any(name == b"expect" for name, _ in headers)
