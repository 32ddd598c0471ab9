"""Fencing numbers for engines that mint them in this process."""

from __future__ import annotations

from time import time_ns


def next_fence(last: int) -> int:
    """Greater than ``last``, and at least the clock's microseconds: so it grows when the memory of ``last`` is gone."""
    now = time_ns() // 1000
    return now if now > last else last + 1
