"""The lease table: each operation is one statement on the hub's shared connection, served in the order of asking."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Hashable, Sequence
from socket import gethostname
from threading import get_ident
from typing import Any, Final

import psycopg
from psycopg import pq

from ....deadline import Deadline
from ....errors import BackendUnavailable, InvalidOption
from ....flow import Flow, Wakeup
from ...base import Holder
from ...lease import Answer, LeaseBackend, LeaseEngine, Messages, Released, Wish
from ...lease.backend import ASK_AGAIN, WINDOW, NoAnswer
from ..connect import checked_conninfo
from ..hub import Hub
from ..statements import read_statements
from .mailbox import Mailbox
from .question import Question

_STATEMENTS: Final = read_statements(__package__)
_TRY_AGAIN: Final = ("40001", "40P01", "57014")
"""Serialisation failure, dead-lock, cancelled by somebody: not done, and nothing is wrong with it."""
_TIMES: Final = 3
_STALE: Final = 3 * ASK_AGAIN
"""Seconds after which a waiter that did not ask again is taken for dead."""
_LONGEST: Final = 1e9
"""Seconds: more than any lease lasts, and no more than the server's clock can add."""


class TableEngine(LeaseEngine):
    """Leases in a table of a PostgreSQL database."""

    @classmethod
    def from_url(cls, place: str, options: dict[str, Any]) -> TableEngine:
        unknown = set(options) - {"pooler"}
        if unknown:
            raise InvalidOption(f"{', '.join(sorted(unknown))}: the postgresql engine takes no such option for leases")
        pooler = options.get("pooler")
        if pooler not in (None, "session"):
            raise InvalidOption(f"pooler={pooler!r}: it is 'session' or left out")
        conninfo = checked_conninfo(f"postgresql://{place}", client_encoding="utf8")
        return cls(("postgresql", conninfo, pooler), lambda: LeaseTable(lambda: psycopg.connect(conninfo), pooler))


class LeaseTable(LeaseBackend):
    scheme = "postgresql"

    def __init__(self, connect: Callable[[], psycopg.Connection[Any]], pooler: str | None) -> None:
        # One connection: what is asked later is served later.
        self._hub = Hub(connect, pooler=pooler, max_connections=1, max_waiting=1, statements=_STATEMENTS)
        self._mailbox = Mailbox(self._hub.open_beside)
        self._host = gethostname().encode()

    @property
    def messages(self) -> Messages:
        return self._mailbox.messages

    @messages.setter
    def messages(self, messages: Messages) -> None:
        self._mailbox.messages = messages

    @property
    def server(self) -> Hashable:
        return ("postgresql lease", self._hub.identity)

    @property
    def ready(self) -> bool:
        return self._mailbox.opened  # from then on, what breaks is mended by whoever asks, and by the mailbox itself

    def open(self, deadline: Deadline, new_wakeup: Callable[[], Wakeup]) -> Flow[None]:
        yield from self._hub.open(deadline)
        wakeup = new_wakeup()
        self._mailbox.open(wakeup)
        yield wakeup.sleep(deadline)
        if not self._mailbox.opened:
            raise self._mailbox.error or NoAnswer("PostgreSQL could not be reached in time")
        yield from self._ask("lease_sweep", (_number(WINDOW),), deadline)

    def amid(self) -> bool:
        if self._hub.mutex._is_owned() or sys.is_finalizing():  # at the end of the interpreter, the courier is no more
            return True
        courier = self._hub._courier
        return courier is not None and courier.ident == get_ident()

    # Operations

    def take(self, wish: Wish, deadline: Deadline) -> Flow[Answer]:
        result = yield from self._ask(
            "lease_take",
            (
                wish.name.encode(),
                wish.token.encode(),
                _number(wish.ttl),
                b"t" if wish.waits else b"f",
                self._mailbox_number(),
                _number(WINDOW),
                _number(_STALE),
                _text(wish.owner),
                *self._seen(wish),
            ),
            deadline,
        )
        fence, again = (_value(result, 0, column) for column in range(2))
        return Answer(None if fence is None else int(fence), None if again is None else float(again))

    def release(self, name: str, token: str, deadline: Deadline) -> Flow[Released]:
        parameters = (name.encode(), token.encode(), self._mailbox_number(), _number(WINDOW))
        result = yield from self._ask("lease_release", parameters, deadline)
        return Released(_value(result, 0, 0) == "t", _value(result, 0, 1), int(_value(result, 0, 2) or 0))

    def extend(self, leases: Sequence[tuple[str, str, float]], deadline: Deadline) -> Flow[list[bool | None]]:
        names, tokens, ttls = zip(*leases, strict=True)
        parameters = (_array(names), _array(tokens), _array([repr(min(ttl, _LONGEST)) for ttl in ttls]))
        result = yield from self._ask("lease_extend", (*parameters, self._mailbox_number()), deadline)
        ours = {int(_value(result, row, 0) or 0) for row in range(result.ntuples)}
        return [number in ours for number in range(1, len(leases) + 1)]

    def detach(self, name: str, token: str, ttl: float, deadline: Deadline) -> Flow[bool]:
        result = yield from self._ask("lease_detach", (name.encode(), token.encode(), _number(ttl)), deadline)
        return _value(result, 0, 0) == "t"

    def rotate(self, old: str, wish: Wish, deadline: Deadline) -> Flow[int | None]:
        parameters = (wish.name.encode(), _text(old), wish.token.encode(), _number(wish.ttl), self._mailbox_number())
        result = yield from self._ask("lease_rotate", (*parameters, *self._seen(wish)), deadline)
        fence = _value(result, 0, 0)
        return None if fence is None else int(fence)

    def holder(self, name: str, deadline: Deadline) -> Flow[Holder | None]:
        result = yield from self._ask("lease_holders", (name.encode(),), deadline)
        return self._holder(result, 0) if result.ntuples else None

    def holders(self, deadline: Deadline) -> Flow[list[Holder]]:
        result = yield from self._ask("lease_holders", (None,), deadline)
        return [self._holder(result, row) for row in range(result.ntuples)]

    def _holder(self, result: pq.abc.PGresult, row: int) -> Holder:
        name, owner, pid, host, since, note, fence, mailbox, waiting = (_value(result, row, n) for n in range(9))
        return Holder(
            key=name or "",
            owner=owner or "",
            pid=int(pid or 0),
            host=host or "",
            since=float(since or 0),
            note=note,
            fence=int(fence or 0),
            waiting=int(waiting or 0),
            here=mailbox is not None and mailbox == str(self._mailbox.number),
        )

    def evict(self, name: str, deadline: Deadline) -> Flow[bool]:
        result = yield from self._ask("lease_evict", (name.encode(), _number(WINDOW)), deadline)
        return _value(result, 0, 0) == "t"

    def close(self) -> None:
        self._mailbox.close()
        self._hub.close()

    # Asking

    def _ask(self, statement: str, parameters: Sequence[bytes | None], deadline: Deadline) -> Flow[Any]:
        """All operations are idempotent: one whose connection broke is asked for again."""
        for _ in range(_TIMES):
            if not self._hub.shared:
                yield from self._hub.open(deadline)
            request = Question(self._hub, statement, parameters, deadline)
            yield request
            if not request.done:
                raise NoAnswer("PostgreSQL did not answer in time")
            if request.error is None:
                return request.result
            code = "" if request.result is None else _sqlstate(request.result)
            if code and code not in _TRY_AGAIN:
                break
        raise _explained(code, request.error)

    def _mailbox_number(self) -> bytes | None:
        number = self._mailbox.number
        return None if number is None else b"%d" % number

    def _seen(self, wish: Wish) -> tuple[bytes | None, ...]:
        return (_text(wish.holder), self._host, b"%d" % os.getpid(), _text(wish.note))


def _explained(code: str, error: BaseException | None) -> BackendUnavailable:
    state = f" (SQLSTATE {code})" if code else ""
    return BackendUnavailable(f"PostgreSQL could not be asked: {error}{state}")


def _sqlstate(result: pq.abc.PGresult) -> str:
    return (result.error_field(pq.DiagnosticField.SQLSTATE) or b"").decode()


def _value(result: pq.abc.PGresult, row: int, column: int) -> str | None:
    value = result.get_value(row, column)
    return None if value is None else value.decode()


def _number(value: float) -> bytes:
    return repr(min(value, _LONGEST)).encode()


def _text(value: str | None) -> bytes | None:
    """For people's eyes: what no server can store is replaced."""
    return None if value is None else value.encode("utf-8", "replace").replace(b"\0", b"?")


def _array(values: Sequence[str]) -> bytes:
    # Names and tokens hold neither quotes nor backslashes unless a key does.
    quoted = (value.replace("\\", "\\\\").replace('"', '\\"') for value in values)
    return ("{" + ",".join(f'"{value}"' for value in quoted) + "}").encode()
