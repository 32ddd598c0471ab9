"""How candidates are compared: in turns inside one run, so that noise from outside falls on all of them alike."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from statistics import median

Spin = Callable[[int], object]
"""Does the thing so many times. The loop is the candidate's own, so that no call is measured with it."""

AsyncSpin = Callable[[int], Awaitable[object]]


def per_call(candidates: Mapping[str, Spin], number: int, rounds: int) -> dict[str, float]:
    """Seconds for each call: the best of the rounds, in each of which every candidate has its turn."""
    best = dict.fromkeys(candidates, float("inf"))
    for _ in range(rounds):
        for name, spin in candidates.items():
            start = time.perf_counter()
            spin(number)
            best[name] = min(best[name], (time.perf_counter() - start) / number)
    return best


def per_call_async(candidates: Mapping[str, AsyncSpin], number: int, rounds: int) -> dict[str, float]:
    """The same inside one event loop."""

    async def turns() -> dict[str, float]:
        best = dict.fromkeys(candidates, float("inf"))
        for _ in range(rounds):
            for name, spin in candidates.items():
                start = time.perf_counter()
                await spin(number)
                best[name] = min(best[name], (time.perf_counter() - start) / number)
        return best

    return asyncio.run(turns())


def call_by_call(candidates: Mapping[str, Callable[[], object]], number: int, rounds: int) -> dict[str, float]:
    """Seconds for each call, the candidates taking turns at every single one: each round's median, the best round's."""
    best = dict.fromkeys(candidates, float("inf"))
    for _ in range(rounds):
        spans: dict[str, list[float]] = {name: [] for name in candidates}
        for _ in range(number):
            for name, call in candidates.items():
                start = time.perf_counter()
                call()
                spans[name].append(time.perf_counter() - start)
        for name, measured in spans.items():
            best[name] = min(best[name], median(measured))
    return best
