"""Waiting for what must come, for as long as a busy machine may need."""

import time
from collections.abc import Callable
from typing import TypeVar

from holdfast.testing import PATIENCE

T = TypeVar("T")


def wait_until(condition: Callable[[], T], what: str, patience: float = PATIENCE) -> T:
    """Until it is true; gives that back. ``what`` is wrong if it does not come to be."""
    deadline = time.monotonic() + patience
    while not (found := condition()):
        assert time.monotonic() < deadline, what
        time.sleep(0.002)
    return found
