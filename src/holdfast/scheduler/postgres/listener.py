"""Hearing what others announce, on a connection of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

import psycopg

CHANNEL: Final = "holdfast_scheduler"
_AGAIN: Final = 1.0


async def listen(
    conninfo: str, payload: str, wake: Callable[[], None], on_trouble: Callable[[BaseException], None]
) -> None:
    """Until it is cancelled. While it cannot hear, the instance looks by itself, only later."""
    while True:
        try:
            async with await psycopg.AsyncConnection.connect(conninfo, autocommit=True) as connection:
                await connection.execute(f"listen {CHANNEL}")
                wake()  # what was announced before that was not heard
                async for notice in connection.notifies():
                    if notice.payload == payload:
                        wake()
        except Exception as error:
            on_trouble(error)
        await asyncio.sleep(_AGAIN)
