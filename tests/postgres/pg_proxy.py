"""A network between a client and the server that a test can freeze, cut, or stop in the middle of an answer."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from math import inf
from urllib.parse import quote

from psycopg.conninfo import conninfo_to_dict


class Proxy:
    """Listens on a port of 127.0.0.1 and passes on to the server of ``url``, which may listen on a unix socket."""

    def __init__(self, url: str) -> None:
        self._server = conninfo_to_dict(url)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._change = threading.Condition()
        self._allowance = {"up": inf, "down": inf}
        """How many more bytes may pass: to the server, and to the client."""
        self._sockets: list[socket.socket] = []
        self.opened = 0
        self._acceptor = threading.Thread(target=self._accept, daemon=True)
        self._acceptor.start()

    @property
    def url(self) -> str:
        user = quote(str(self._server.get("user") or "postgres"), safe="")
        password = self._server.get("password")
        login = f"{user}:{quote(str(password), safe='')}" if password else user
        return f"postgresql://{login}@127.0.0.1:{self.port}/{self._server.get('dbname') or 'postgres'}"

    def freeze(self) -> None:
        """Nothing passes any more, in either direction; every connection stays open."""
        self._allow(up=0, down=0)

    def freeze_answers_after(self, size: int) -> None:
        """The server's answers stop after so many bytes."""
        self._allow(up=inf, down=size)

    def thaw(self) -> None:
        self._allow(up=inf, down=inf)

    def cut(self) -> None:
        """Every connection ends; new ones can be made."""
        with self._change:
            sockets, self._sockets = self._sockets, []
        for end in sockets:
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # it ended by itself

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._acceptor.join()  # or it might go on with whatever gets the number of the closed descriptor
        self._listener.close()
        self.thaw()
        self.cut()

    def _allow(self, *, up: float, down: float) -> None:
        with self._change:
            self._allowance = {"up": up, "down": down}
            self._change.notify_all()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = self._connect()
            with self._change:
                self._sockets += [client, server]
                self.opened += 1
            for way, source, target in (("up", client, server), ("down", server, client)):
                threading.Thread(target=self._pump, args=(way, source, target), daemon=True).start()

    def _connect(self) -> socket.socket:
        host, port = str(self._server["host"]), int(self._server.get("port") or 5432)
        if not host.startswith("/"):
            return socket.create_connection((host, port))
        server = socket.socket(socket.AF_UNIX)
        server.connect(f"{host}/.s.PGSQL.{port}")
        return server

    def _pump(self, way: str, source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                while data:
                    size = self._take(way, len(data))
                    target.sendall(data[:size])
                    data = data[size:]
        except OSError:
            pass
        for end in (source, target):
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
        source.close()  # each pump closes its source: together they close both

    def _take(self, way: str, wanted: int) -> int:
        with self._change:
            self._change.wait_for(lambda: self._allowance[way] > 0)
            size = int(min(wanted, self._allowance[way]))
            self._allowance[way] -= size
            return size


@contextmanager
def proxy(url: str) -> Iterator[Proxy]:
    between = Proxy(url)
    try:
        yield between
    finally:
        between.close()
