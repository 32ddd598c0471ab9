"""Where the server is and how it is reached: from a URL, or from a client that the application has.

redis-py opens the connection: it knows addresses, TLS, passwords and Sentinels. What is opened is then used without it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Hashable
from secrets import token_hex
from socket import socket as Socket
from typing import Any, Final, NamedTuple

from redis.connection import Connection, SSLConnection, UnixDomainSocketConnection, parse_url
from redis.exceptions import AuthenticationError, RedisError, ResponseError

from ...errors import BackendUnavailable, InvalidOption, Unsupported
from .scripts import IDENTIFY

SCHEMES: Final = {
    "redis": "redis", "valkey": "redis", "rediss": "rediss", "valkeys": "rediss",
    "unix": "unix", "redis+unix": "unix", "valkey+unix": "unix",
}  # fmt: skip
OPEN_SECONDS: Final = 5.0

_DATABASE: Final = b"holdfast:database"
"""The key that names the database itself."""
# What says how a server is reached. The rest of a client's settings (decoding, retries, caches) is its own business.
_TAKEN_OVER: Final = (
    "host", "port", "path", "db", "username", "password", "credential_provider", "socket_type",
    "socket_keepalive", "socket_keepalive_options",
)  # fmt: skip


class Opened(NamedTuple):
    socket: Socket
    database: str
    """Equal for all who reach this database, by whatever address."""
    clustered: bool


class Address:
    def __init__(
        self,
        kind: type[Any],
        settings: dict[str, Any],
        master: Callable[[], tuple[str, int]] | None = None,
        identity: Hashable = None,
    ) -> None:
        self._kind = kind
        self._settings = settings
        self._master = master
        self.identity: Hashable = identity or (kind, tuple(sorted((k, repr(v)) for k, v in settings.items())))
        """Equal for two addresses that are opened in the same way."""

    @classmethod
    def from_url(cls, url: str) -> Address:
        scheme, _, place = url.partition("://")
        scheme = SCHEMES[scheme]
        try:
            settings: dict[str, Any] = parse_url(f"{scheme}://{place}")  # type: ignore[no-untyped-call]
            # What follows the host must hold no @: part of a password would have become the host, which errors show.
            readable = scheme == "unix" or not any("@" in rest for rest in re.split("[/?#]", place)[1:])
        except ValueError:  # its message may show a part of the password
            readable = False
        if not readable:
            raise InvalidOption("url: it cannot be read; write special characters in it as %XX")
        kind = settings.pop("connection_class", Connection)
        return cls(kind, _known(kind, settings))

    @classmethod
    def from_client(cls, client: Any) -> Address:
        """The way the application's own client goes. Nothing is taken from its pool."""
        pool = getattr(client, "connection_pool", None)
        if pool is None:
            raise Unsupported(
                f"from_client: {type(client).__name__} has no connection pool; give a redis.Redis or "
                "redis.asyncio.Redis (a cluster client cannot be used yet: give the URL of a node)"
            )
        settings = dict(pool.connection_kwargs)
        kind = _kind_of(pool.connection_class, settings)
        master = _master_by_sentinels(pool) if hasattr(pool, "sentinel_manager") else None
        identity = (id(pool), pool) if master else None  # the pool is kept alive, so the id stays its own
        return cls(kind, _known(kind, settings), master, identity)

    def open(self, patience: float = OPEN_SECONDS) -> Opened:
        """Connects, authenticates, and refuses a server on which locks would not be safe. Blocks."""
        settings = dict(self._settings)
        connection = None
        try:
            if self._master is not None:
                settings["host"], settings["port"] = self._master()
            connection = self._kind(
                **settings,
                protocol=2,
                client_name=f"holdfast[{os.getpid()}]",
                socket_connect_timeout=max(0.01, min(patience, OPEN_SECONDS)),
                socket_timeout=max(0.01, min(patience, OPEN_SECONDS)),
            )
            connection.connect()
            opened = _examined(connection)
            connection._sock = None  # it is ours now
            return opened
        except (AuthenticationError, ResponseError) as error:
            raise BackendUnavailable(f"Redis refused the connection: {error}") from None
        except (RedisError, OSError) as error:
            raise BackendUnavailable(f"Redis cannot be reached: {error}") from None
        finally:
            if connection is not None:
                connection.disconnect()


def _examined(connection: Any) -> Opened:
    connection.send_command("HELLO")
    words = [word.decode() if isinstance(word, bytes) else word for word in connection.read_response()]
    server = dict(zip(words[::2], words[1::2], strict=False))
    if server.get("role") != "master":
        # Not for ever, maybe: a failover may be under way.
        raise BackendUnavailable("this Redis is a replica: its locks exclude nobody; give the address of the master")
    connection.send_command("EVAL", IDENTIFY.source, 1, _DATABASE, token_hex(8))
    name = connection.read_response()
    return Opened(connection._sock, name.decode(), server.get("mode") == "cluster")


def _known(kind: type[Any], settings: dict[str, Any]) -> dict[str, Any]:
    taken = {name: value for name, value in settings.items() if name in _TAKEN_OVER and value is not None}
    if kind is SSLConnection:
        taken |= {name: value for name, value in settings.items() if name.startswith("ssl_") and name != "ssl_context"}
    if kind is not UnixDomainSocketConnection:
        # A dead network is noticed, also by those who only listen.
        taken.setdefault("socket_keepalive", True)
        taken.pop("path", None)
    else:
        for name in ("host", "port", "socket_type", "socket_keepalive", "socket_keepalive_options"):
            taken.pop(name, None)
    return taken


def _kind_of(connection_class: type[Any], settings: dict[str, Any]) -> type[Any]:
    names = {base.__name__ for base in connection_class.__mro__}
    if "UnixDomainSocketConnection" in names:
        return UnixDomainSocketConnection
    # SSLConnection, SentinelManagedSSLConnection: of the sync or the async client.
    return SSLConnection if any("SSL" in name for name in names) else Connection


def _master_by_sentinels(pool: Any) -> Callable[[], tuple[str, int]]:
    """Asks the same Sentinels as the client's own pool, on connections of our own."""
    from redis import sentinel as sentinels

    new_sentinel: Any = sentinels.Sentinel
    manager = pool.sentinel_manager
    addresses = []
    for sentinel in manager.sentinels:
        settings = sentinel.connection_pool.connection_kwargs
        addresses.append((settings["host"], settings["port"]))
    kwargs = {k: v for k, v in manager.sentinel_kwargs.items() if k in _TAKEN_OVER or k.startswith("ssl")}

    def master() -> tuple[str, int]:
        asked = new_sentinel(addresses, sentinel_kwargs={**kwargs, "socket_timeout": OPEN_SECONDS, "protocol": 2})
        try:
            host, port = asked.discover_master(pool.service_name)
            return host, port
        finally:
            for client in asked.sentinels:
                client.close()

    return master
