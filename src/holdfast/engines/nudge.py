"""Rousing a thread that sleeps at descriptors: another one of its descriptors becomes readable."""

from __future__ import annotations

import os
import select


class Nudge:
    """A pipe, closed with the last reference to it.

    Not before: whoever is about to give a nudge would write to whatever has this number by then.
    """

    def __init__(self) -> None:
        self.fd, self._write = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(self._write, False)

    def give(self) -> None:
        """From any thread. Stays readable until it is cleared."""
        try:
            os.write(self._write, b"x")
        except BlockingIOError:
            pass  # full: it is awake anyway

    def clear(self) -> None:
        try:
            os.read(self.fd, 4096)
        except BlockingIOError:
            pass

    def wait(self, seconds: float) -> bool:
        """Sleeps until a nudge, which is left for others to see. False if there was none in that time."""
        return readable(self.fd, seconds)

    def __del__(self) -> None:
        os.close(self.fd)
        os.close(self._write)


def readable(fd: int, seconds: float) -> bool:
    """Not by ``select.select``, which takes no descriptor above 1023: a server with many connections has those."""
    poll = select.poll()
    poll.register(fd, select.POLLIN)
    return bool(poll.poll(seconds * 1000))
