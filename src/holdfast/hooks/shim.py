"""``holdfast hook``: brings the event on its standard input to the server. Run by the coding agent, which waits for it.

It never fails and never takes more than two seconds: what the server does not take in time goes to the spool, and is
delivered by the next call, or by the server when it is back.
"""

import os
import signal
import sys
from collections.abc import Sequence
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
        signal.signal(signal.SIGALRM, _out_of_time)
        signal.setitimer(signal.ITIMER_REAL, SECONDS)
        _hand_over(*_options(arguments))
    except (Exception, OutOfTime) as error:
        print(f"holdfast hook: {type(error).__name__}: {error}", file=sys.stderr)
    return 0


def _hand_over(url: str, data: Path) -> None:
    body = sys.stdin.buffer.read(MOST_BYTES + 1)
    if not body.strip() or len(body) > MOST_BYTES:
        return
    delivery_id = os.urandom(16).hex()
    spool = Spool(spool_dir(data, url))
    server = Server(url, data, SECONDS)
    if not spool.empty:  # behind those that wait, or the order is lost
        spool.add(delivery_id, body)
        spool.deliver(lambda each, kept: server.send(each, kept, late=each != delivery_id))
        return
    try:
        outcome = server.send(delivery_id, body)
    except OutOfTime:
        outcome = Delivery.FAILED  # not known, rather: delivered again, it is recognised by its id
    signal.setitimer(signal.ITIMER_REAL, 0)
    if outcome is Delivery.FAILED:
        spool.add(delivery_id, body)
    elif server.decision:
        sys.stdout.buffer.write(server.decision)


def _options(arguments: Sequence[str]) -> tuple[str, Path]:
    url, data = DEFAULT_URL, data_dir()
    for name, value in zip(arguments[::2], arguments[1::2], strict=False):
        if name == "--url":
            url = value
        elif name == "--data-dir":
            data = Path(value)
    return url, data


def _out_of_time(number: int, frame: FrameType | None) -> None:
    raise OutOfTime("the server did not answer in time")
