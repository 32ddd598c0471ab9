"""What the contract suite runs against: named by a string, so that a child process can open the same."""

from __future__ import annotations

import os
from importlib import import_module
from typing import Final

from ..engines.base import Engine
from ..engines.registry import engine_from_url

PATIENCE: Final = float(os.environ.get("HOLDFAST_TEST_PATIENCE", "20"))
"""How many seconds a test waits for what must happen, before it fails instead of hanging."""


TTL: Final = 1.0
"""The lease, in seconds, of holders that are to be killed or stopped: a test waits for its end."""

LASTING: Final = 3.0
"""The lease of holders that are to keep it: renewed in time, even if the machine stands still for a second or two."""


def short_ttl(engine: Engine) -> float | None:
    """For processes whose locks a test waits for: they end soon after the process, if they are leases."""
    return TTL if engine.capabilities.expiring else None


def open_engine(target: str) -> Engine:
    """The engine at a URL, or the one that a function makes that is named as ``package.module:function``."""
    if "://" in target:
        return engine_from_url(target, {})
    module, _, function = target.partition(":")
    engine: Engine = getattr(import_module(module), function)()
    return engine
