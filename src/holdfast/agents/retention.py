"""Agents that were not heard of for long are forgotten, with all that is theirs: else the tables would only grow."""

from __future__ import annotations

import logging
import time
from typing import Final

from sqlalchemy import text

from .database import Database

_log = logging.getLogger("holdfast.agents")

INTERVAL: Final = 3600.0
AT_ONCE: Final = 50
"""Agents in one transaction: it should be short, whatever there is to be forgotten."""

_FORGET: Final = text("select holdfast.forget_agents(:seconds, :most)")


class Retention:
    def __init__(self, database: Database, days: float) -> None:
        self._database = database
        self._seconds = days * 86_400
        self._next_at = 0.0

    async def look(self) -> None:
        """Does what is due, once in a while. Any number of processes may: each takes what no other has."""
        if not self._seconds or time.monotonic() < self._next_at:
            return
        forgotten = 0
        while True:
            async with self._database.statement() as connection:
                some = (await connection.execute(_FORGET, {"seconds": self._seconds, "most": AT_ONCE})).scalar_one()
            forgotten += some
            if some < AT_ONCE:
                break
        self._next_at = time.monotonic() + INTERVAL
        if forgotten:
            _log.info("agents forgotten: %d", forgotten, extra={"action": "agents_forgotten"})
