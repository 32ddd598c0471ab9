"""The Redis engine: leases that scripts on the server keep."""

from __future__ import annotations

from typing import Any, Final

from ...errors import InvalidOption
from ..lease import LeaseEngine
from .address import Address
from .backend import RedisBackend

_OPTIONS: Final = {"window": 0.5, "wait_replicas": 0, "replicas_within": 1.0}


class RedisEngine(LeaseEngine):
    """Locks of everything that reaches one Redis or Valkey."""

    scheme = "redis"

    def __init__(self, address: Address, **options: Any) -> None:
        chosen = _checked(options)
        identity = ("redis", address.identity, *chosen.values())
        super().__init__(identity, lambda: RedisBackend(address, **chosen))

    @classmethod
    def from_url(cls, url: str, options: dict[str, Any]) -> RedisEngine:
        return cls(Address.from_url(url), **options)

    @classmethod
    def from_client(cls, client: Any, **options: Any) -> RedisEngine:
        """Locks on the server of a client that the application has: a ``redis.Redis`` or ``redis.asyncio.Redis``.

        It is reached in the same way, on connections of the engine's own.
        """
        return cls(Address.from_client(client), **options)

    def __repr__(self) -> str:
        return "redis://…"


def _checked(options: dict[str, Any]) -> dict[str, Any]:
    unknown = set(options) - set(_OPTIONS)
    if unknown:
        raise InvalidOption(f"{', '.join(sorted(unknown))}: the redis engine takes no such option")
    chosen = {**_OPTIONS, **options}
    replicas = chosen["wait_replicas"]
    if isinstance(replicas, bool) or not isinstance(replicas, int) or replicas < 0:
        raise InvalidOption(f"wait_replicas={replicas!r}: give a whole number of replicas")
    for name in ("window", "replicas_within"):
        value = chosen[name]
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 60:
            raise InvalidOption(f"{name}={value!r}: give seconds, more than 0 and at most 60")
    return chosen
