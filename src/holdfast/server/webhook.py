"""Messages of the outbox, posted to the address that ``notify_url`` names."""

from __future__ import annotations

import asyncio
from typing import Final

import httpx

from ..agents.outbox import Message, Undelivered

PATIENCE: Final = 10.0
"""Seconds for all of it: connecting, sending, and the answer's first line."""


class Webhook:
    def __init__(self, url: str) -> None:
        self._url = url
        self._client = httpx.AsyncClient(timeout=PATIENCE, follow_redirects=False)

    async def post(self, message: Message) -> None:
        """Raises ``Undelivered``, which never names the address: whoever knows that may often post there."""
        key = {"Idempotency-Key": str(message.key)}
        try:
            async with asyncio.timeout(PATIENCE):  # httpx counts each step by itself
                async with self._client.stream("POST", self._url, json=message.payload, headers=key) as answer:
                    status = answer.status_code  # the body is not read: it may be of any length
        except (httpx.HTTPError, TimeoutError) as error:
            raise Undelivered(type(error).__name__) from None
        if not 200 <= status < 300:
            raise Undelivered(f"status {status}")

    async def close(self) -> None:
        await self._client.aclose()
