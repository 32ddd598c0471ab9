"""A network between a client and the server that a test can freeze and cut, and that can lose an answer."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Proxy:
    """Listens on a port of 127.0.0.1 and passes on to the server at a unix socket."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}"
        self._change = threading.Condition()
        self._frozen = False
        self._sockets: list[socket.socket] = []
        self._silent: set[socket.socket] = set()
        self._to_lose = b""
        self.lost = 0
        """How many answers were lost."""
        self._acceptor = threading.Thread(target=self._accept, daemon=True)
        self._acceptor.start()

    def lose_the_answer_to(self, request: bytes) -> None:
        """The next request that holds these bytes reaches the server; its answer, and the connection, do not come."""
        self._to_lose = request

    def freeze(self) -> None:
        """Nothing passes any more, in either direction; every connection stays open."""
        with self._change:
            self._frozen = True

    def thaw(self) -> None:
        with self._change:
            self._frozen = False
            self._change.notify_all()

    def silence(self) -> None:
        """The connections that there are stay open, and nothing passes there any more; new ones work."""
        with self._change:
            self._silent.update(self._sockets)

    def cut(self) -> None:
        """Every connection ends; new ones can be made."""
        with self._change:
            sockets, self._sockets = self._sockets, []
        for end in sockets:
            _shut(end)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._acceptor.join()  # or it might go on with whatever gets the number of the closed descriptor
        self._listener.close()
        self.thaw()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX)
            server.connect(self._path)
            with self._change:
                self._sockets += [client, server]
            doomed = threading.Event()
            threading.Thread(target=self._pump, args=(client, server, doomed, True), daemon=True).start()
            threading.Thread(target=self._pump, args=(server, client, doomed, False), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, doomed: threading.Event, up: bool) -> None:
        try:
            while data := source.recv(65536):
                with self._change:
                    self._change.wait_for(lambda: not self._frozen)
                    if source in self._silent:
                        continue
                    if up and self._to_lose and self._to_lose in data:
                        self._to_lose = b""
                        doomed.set()
                if not up and doomed.is_set():
                    self.lost += 1
                    break
                target.sendall(data)
        except OSError:
            pass
        _shut(source)
        _shut(target)
        source.close()  # each pump closes its source: together they close both


def _shut(end: socket.socket) -> None:
    try:
        end.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass  # it ended by itself


@contextmanager
def proxy(path: str) -> Iterator[Proxy]:
    between = Proxy(path)
    try:
        yield between
    finally:
        between.close()
