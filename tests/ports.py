"""Ports on which nobody listens, for as long as a test says so."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def reserved_port() -> Iterator[int]:
    """Bound and not listened on: who connects is refused, and the kernel gives it to nobody who asks for any port.

    Whoever names it can listen there, if they allow reuse, as servers do.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()[1]
