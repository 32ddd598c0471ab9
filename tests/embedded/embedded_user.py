"""A program that uses an embedded server; the tests talk to it through its pipes, one JSON line per event.

Usage: embedded_user.py postgres|redis FOLDER [OPTIONS-JSON [WAIT]]
It says "loaded", waits for a line, starts, says "using", and then does what each line says.
"""

import json
import logging
import os
import signal
import socket
import struct
import sys
import threading
from urllib.parse import parse_qs, unquote, urlsplit

from holdfast import embedded


def say(**event: object) -> None:
    print(json.dumps(event), flush=True)


class Progress(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        say(event="progress", text=record.getMessage())


def socket_of(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme == "unix":
        return unquote(parts.path)
    query = parse_qs(parts.query)
    return f"{query['host'][0]}/.s.PGSQL.{query.get('port', ['5432'])[0]}"


def server_pid(url: str) -> int:
    """Who listens there, according to the kernel."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(socket_of(url))
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    return int(struct.unpack("3i", credentials)[0])


def fork_child_that_stays() -> None:
    child = os.fork()
    if child == 0:
        signal.pause()
    say(event="forked", pid=child)


def main() -> None:
    kind, folder, *more = sys.argv[1:]
    options = json.loads(more[0]) if more else {}
    wait = float(more[1]) if len(more) > 1 else 60.0
    logging.getLogger("holdfast.embedded").setLevel(logging.INFO)
    logging.getLogger("holdfast.embedded").addHandler(Progress())
    start = {"postgres": embedded.start_postgres, "redis": embedded.start_redis}[kind]
    say(event="loaded")
    sys.stdin.readline()
    try:
        server = start(folder, options=options, wait=wait)
    except embedded.EmbeddedError as error:
        say(event="refused", text=str(error))
        return
    with server:
        say(event="using", url=server.url, server=server_pid(server.url))
        for line in sys.stdin:
            if line == "leave\n":
                return
            if line == "raise\n":
                raise KeyError("as the test asked")
            if line == "fork\n":
                fork_child_that_stays()
            if line == "threads\n":
                say(event="threads", count=threading.active_count())


if __name__ == "__main__":
    main()
