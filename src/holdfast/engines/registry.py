"""From a URL to its engine. Drivers are imported here, when they are needed, and nowhere before."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final, NamedTuple

from ..errors import InvalidOption, MissingExtra, Unsupported
from .base import Engine

OpenEngine = Callable[[str, dict[str, Any]], Engine]
"""Makes an engine of what follows ``scheme:`` in the URL (without ``//``) and of the options of ``from_url``."""


class _BuiltIn(NamedTuple):
    module: str
    engine: str
    driver: str | None = None
    extra: str | None = None
    whole_url: bool = False
    """Whether the engine wants to see the scheme, too: it says more than which engine."""


_REDIS: Final = _BuiltIn("holdfast.engines.redis", "RedisEngine", "redis", "redis", whole_url=True)

_BUILT_IN: Final = {
    "memory": _BuiltIn("holdfast.engines.memory", "MemoryEngine"),
    "file": _BuiltIn("holdfast.engines.file", "FileEngine"),
    "postgresql": _BuiltIn("holdfast.engines.postgres", "PostgresEngine", "psycopg", "postgres"),
    "postgres": _BuiltIn("holdfast.engines.postgres", "PostgresEngine", "psycopg", "postgres"),
    **dict.fromkeys(("redis", "rediss", "valkey", "valkeys", "unix", "redis+unix", "valkey+unix"), _REDIS),
}
_registered: dict[str, OpenEngine] = {}


def register_engine(scheme: str, open_engine: OpenEngine) -> None:
    """Has ``from_url("scheme://…")`` open an engine of your own."""
    if scheme in _BUILT_IN:
        raise InvalidOption(f"scheme {scheme!r} is one of Holdfast's own")
    _registered[scheme] = open_engine


def engine_from_url(url: str, options: dict[str, Any]) -> Engine:
    scheme, colon, rest = url.partition(":") if isinstance(url, str) else ("", "", "")
    if not colon or not rest.startswith("//"):
        raise InvalidOption("url: give one such as 'memory://name' or 'file:///var/lock/app'")  # it may hold a secret
    place = rest[2:]
    if scheme in _registered:
        return _registered[scheme](place, options)
    if scheme not in _BUILT_IN:
        known = ", ".join(f"{name}://" for name in sorted([*_BUILT_IN, *_registered]))
        raise InvalidOption(f"url: no engine for {scheme[:20]!r}; this version knows {known}")
    built_in = _BUILT_IN[scheme]
    if built_in.driver is not None and find_spec(built_in.driver) is None:
        raise MissingExtra(f"{scheme}:// needs {built_in.driver}: pip install 'holdfast[{built_in.extra}]'")
    if find_spec(built_in.module) is None:
        raise Unsupported(f"url: {scheme}:// is not part of this version yet")
    engine: Engine = getattr(import_module(built_in.module), built_in.engine).from_url(
        url if built_in.whole_url else place, options
    )
    return engine
