"""``holdfast hook``: brings the event on its standard input to the server. Run by the coding agent, which waits for it.

It never fails and never takes more than two seconds: what the server does not take in time goes to the spool, and is
delivered by the next call, or by the server when it is back.
"""

import os
import select
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import Final

from .folders import DEFAULT_URL, data_dir, spool_dir
from .spool import Delivery, Spool

SECONDS: Final = 1.4
"""For the server to answer. What is left to two seconds is for the spool, and for Python's start and end."""
MOST_BYTES: Final = 8 * 2**20

_NEVER: Final = frozenset({400, 413, 415, 422})


class OutOfTime(BaseException):
    """Not an Exception: nothing on the way may take it for a fault of its own."""


class Limit:
    """When it is over, the wait for the server ends, and nothing else: an event that was read is always kept."""

    def __init__(self, seconds: float) -> None:
        self._at = time.monotonic() + seconds
        self._waiting = False
        signal.signal(signal.SIGALRM, self._over)

    @property
    def left(self) -> float:
        return max(0.0, self._at - time.monotonic())

    def keep(self, wait: Callable[[], None]) -> None:
        """Waits, for what is left of the time."""
        left = self.left
        if not left:
            return
        try:
            try:
                self._waiting = True
                signal.setitimer(signal.ITIMER_REAL, left)
                wait()
            finally:
                self._waiting = False
        except OutOfTime:
            pass
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)  # at the end of Python, an alarm would kill

    def _over(self, number: int, frame: FrameType | None) -> None:
        if self._waiting:  # not when the alarm comes late, amid something that is to be done
            self._waiting = False
            raise OutOfTime("the server did not answer in time")


class Server:
    """The hook routes as a sender sees them. The connection is kept from one event to the next."""

    def __init__(self, url: str, data: Path, timeout: float) -> None:
        from urllib.parse import urlsplit

        self._parts = urlsplit(url)
        self._data = data
        self._timeout = timeout
        self.decision = b""
        """What the server answered to the last event, if it had something to say."""

    def send(self, delivery_id: str, body: bytes, *, late: bool = False) -> Delivery:
        import http.client

        kind = http.client.HTTPSConnection if self._parts.scheme == "https" else http.client.HTTPConnection
        connection = kind(self._parts.hostname or "", self._parts.port, timeout=self._timeout)
        headers = {
            "Content-Type": "application/json",
            "Authorization": f"Bearer {self._token()}",
            "Holdfast-Delivery": delivery_id,
        }
        if late:
            headers["Holdfast-Spooled"] = "1"
        try:
            connection.request("POST", f"{self._parts.path.rstrip('/')}/hook", body, headers)
            answer = connection.getresponse()
            self.decision = answer.read(MOST_BYTES)
        except (OSError, http.client.HTTPException):
            return Delivery.FAILED
        finally:
            connection.close()
        if 200 <= answer.status < 300:
            return Delivery.TAKEN
        self.decision = b""
        return Delivery.REFUSED if answer.status in _NEVER else Delivery.FAILED

    def send_late(self, delivery_id: str, body: bytes) -> Delivery:
        return self.send(delivery_id, body, late=True)

    def _token(self) -> str:
        given = os.environ.get("HOLDFAST_TOKEN")
        if given:
            return given
        try:
            return (self._data / "hook-token").read_text().strip()
        except OSError:
            return "none"  # the answer will be 401, and the event kept


def main(arguments: Sequence[str]) -> int:
    """Always 0: what is wrong here must not be the agent's trouble."""
    try:
        _hand_over(*_options(arguments), Limit(SECONDS))
    except (Exception, OutOfTime) as error:
        print(f"holdfast hook: {type(error).__name__}: {error}", file=sys.stderr)
    return 0


def _hand_over(url: str, data: Path, limit: Limit) -> None:
    body = _read(limit)
    if not body.strip() or len(body) > MOST_BYTES:
        return
    delivery_id = os.urandom(16).hex()
    spool = Spool(spool_dir(data, url))
    server = Server(url, data, SECONDS)
    if not spool.empty:  # behind those that wait, or the order is lost
        spool.add(delivery_id, body)
        limit.keep(lambda: spool.deliver(lambda each, kept: server.send(each, kept, late=each != delivery_id)))
        return
    outcome = Delivery.FAILED  # or not known: delivered again, it is recognised by its id

    def send() -> None:
        nonlocal outcome
        outcome = server.send(delivery_id, body)

    try:
        limit.keep(send)
    finally:  # also if it cannot even be sent: an address or a token that is none
        if outcome is Delivery.FAILED:
            spool.add(delivery_id, body)
        elif server.decision:
            sys.stdout.buffer.write(server.decision)


def _read(limit: Limit) -> bytes:
    """All of the standard input. What is there is read, however late it is: else an event would be lost."""
    body = bytearray()
    while len(body) <= MOST_BYTES:
        if not select.select([0], [], [], limit.left)[0]:
            raise OutOfTime("the standard input has no end")
        part = os.read(0, MOST_BYTES)
        if not part:
            break
        body += part
    return bytes(body)


def _options(arguments: Sequence[str]) -> tuple[str, Path]:
    url, data = DEFAULT_URL, data_dir()
    for name, value in zip(arguments[::2], arguments[1::2], strict=False):
        if name == "--url":
            url = value
        elif name == "--data-dir":
            data = Path(value)
    return url, data
