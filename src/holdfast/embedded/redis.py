"""An embedded Redis: reachable through its socket only, by the owner of its folder and root only."""

import contextlib
import os
import signal
import socket as sockets
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

from . import server
from ._programs import redis_server
from ._recipe import Workbench
from .server import Server

_SETTINGS = {"port": "0", "unixsocketperm": "700", "appendonly": "yes"}
_FIXED_SETTINGS = {"unixsocket", "daemonize", "supervised"}


def start_redis(
    data_dir: str | os.PathLike[str], *, options: Mapping[str, str] | None = None, wait: float = 60.0
) -> Server:
    """Join the Redis of `data_dir`, or start it (making the folder if need be).

    `options` are settings as redis.conf has them, such as ``{"appendonly": "no", "save": ""}``. They count only if
    this call really starts the server; a server that already runs keeps the settings it was started with.
    """
    return server.start(RECIPE, data_dir, options or {}, wait)


class _Redis:
    name = "redis"
    accounts = ("redis", "nobody")
    stop_signals = (signal.SIGTERM, signal.SIGKILL)  # Redis stays if it cannot save; then it has to go without

    def program(self, home: Path) -> Path:
        return redis_server()

    def socket_name(self, options: Mapping[str, str]) -> str:
        for name, value in options.items():
            if name.lower() in _FIXED_SETTINGS:
                raise ValueError(f"{name} is given by the data folder and cannot be an option")
            if "\n" in name + value:
                raise ValueError(f"a setting is one line: {name}")
        return "redis.sock"

    def command(self, bench: Workbench) -> list[str]:
        data = bench.home / "data"
        data.mkdir(exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(bench.socket)  # of a killed server
        settings = {"dir": _quoted(str(data)), "unixsocket": _quoted(bench.socket)} | _SETTINGS
        settings |= {name.lower(): value for name, value in bench.order.options.items()}
        lines = [f"{name} {value or _quoted('')}\n" for name, value in settings.items()]
        # A file, not a command line: everybody can read command lines, and a setting may be a password.
        conf = bench.home / "redis.conf"
        conf.write_text("# Written anew at every start.\n" + "".join(lines), errors="surrogateescape")
        return [bench.order.program, str(conf)]

    def answers(self, socket: str, patience: float) -> bool:
        try:
            with sockets.socket(sockets.AF_UNIX) as connection:
                connection.settimeout(max(patience, 0.001))  # zero would mean: do not wait at all
                connection.connect(socket)
                connection.sendall(b"PING\r\n")
                answer = connection.recv(64)
        except OSError:
            return False
        # Any refusal but "still loading my data", such as "give me a password", shows that it works.
        return answer[:1] in (b"+", b"-") and not answer.startswith(b"-LOADING")

    def url(self, socket: str) -> str:
        return f"unix://{quote(os.fsencode(socket))}?db=0"


RECIPE = _Redis()


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
