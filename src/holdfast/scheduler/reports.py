"""Endings on their way to the store. Those that come while one is being written go together in the next."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from .store import Attempt, DataRefused, Ending, Store

_BATCH: Final = 200
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 2.0


class Reports:
    def __init__(self, store: Store, on_trouble: Callable[[str, BaseException], None]) -> None:
        self._store = store
        self._on_trouble = on_trouble
        self._waiting: list[tuple[Ending, asyncio.Future[bool]]] = []
        self._writer: asyncio.Task[None] | None = None

    async def send(self, ending: Ending) -> bool:
        """Whether it was taken; if not, the run was not ours any more. While the store is away, this waits for it."""
        taken = asyncio.get_running_loop().create_future()
        self._waiting.append((ending, taken))
        if self._writer is None or self._writer.done():
            self._writer = asyncio.create_task(self._write())
        return await asyncio.shield(taken)

    async def _write(self) -> None:
        while self._waiting:
            batch, self._waiting = self._waiting[:_BATCH], self._waiting[_BATCH:]
            accepted = await self._deliver([ending for ending, _ in batch])
            for ending, taken in batch:
                if not taken.done():
                    taken.set_result(ending.of in accepted)

    async def _deliver(self, endings: Sequence[Ending]) -> set[Attempt]:
        pause = _FIRST_PAUSE
        while True:
            try:
                return await self._store.finish(endings)
            except DataRefused as error:
                self._on_trouble("finish", error)
                if len(endings) > 1:  # one of them: the others are not to wait for it
                    return set().union(*[await self._deliver([ending]) for ending in endings])
                if endings[0].result is None and endings[0].error == _REFUSED:
                    return set()  # its lease will run out
                endings = [endings[0]._replace(result=None, error=_REFUSED)]
            except Exception as error:
                # Sent again until it is answered: the fence sees to it that a late one changes nothing.
                self._on_trouble("finish", error)
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)


_REFUSED: Final = "how it ended could not be recorded"
