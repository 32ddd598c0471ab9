"""The PostgreSQL engine: session-scoped advisory locks on connections of its own."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Final

import psycopg

from ...deadline import Deadline
from ...errors import BackendUnavailable, InvalidOption, LockLost
from ...flow import Flow, ThreadWakeup, Wakeup, at_once, run
from ...keys import Key
from ...ticket import State, Ticket
from ..base import Capabilities, Engine, Eviction, Holder, describe, told
from ..shared import Shared
from .answers import Busy
from .connect import FENCED, PREPARED, checked_conninfo, split_options
from .holders import LockRow, holders_from, parse_rows, text_of
from .hub import Hub
from .requests import ANSWER_SECONDS, Ask, Unlock

_NUMBERS: Final = {"max_connections": 4, "max_waiting": 8}
CLOSE_SECONDS: Final = 2.0
"""How long closing waits for the server to confirm what was given back."""

_hubs: Shared[Hub] = Shared()


class PostgresEngine(Engine):
    """Locks end with their connection. First come, first served; inside a process a few hand-overs may come before.

    With ``fence=True`` every grant carries a number, for which ``holdfast db upgrade`` has to be run once.
    """

    scheme = "postgresql"
    capabilities = Capabilities(scope="network")

    def __init__(
        self,
        connect: Callable[[], psycopg.Connection[Any]],
        identity: tuple[Any, ...],
        *,
        pooler: str | None = None,
        fence: bool = False,
        max_connections: int = _NUMBERS["max_connections"],
        max_waiting: int = _NUMBERS["max_waiting"],
    ) -> None:
        if fence:
            self.capabilities = self.capabilities._replace(fenced=True)
        self._identity = (*identity, pooler, fence, max_connections, max_waiting)
        self._hub = _hubs.take(
            self._identity,
            lambda: Hub(
                connect,
                pooler=pooler,
                max_connections=max_connections,
                max_waiting=max_waiting,
                statements=FENCED if fence else PREPARED,
            ),
        )
        self._closed = False

    @staticmethod
    def from_url(place: str, options: dict[str, Any]) -> Engine:
        """Advisory locks, or with ``mode="lease"`` leases in a table. This and ``fence`` may be in the URL's query."""
        place, in_url = split_options(place)
        options = {**in_url, **options}
        mode = options.pop("mode", None)
        if mode == "lease":
            from .lease import TableEngine

            return TableEngine.from_url(place, options)
        if mode not in (None, "advisory"):
            raise InvalidOption(f"mode={mode!r}: it is 'advisory' or 'lease'")
        conninfo = checked_conninfo(f"postgresql://{place}")
        return PostgresEngine(lambda: psycopg.connect(conninfo), (conninfo,), **checked_options(options))

    @property
    def ready(self) -> bool:
        return bool(self._hub.shared)

    def open(self, deadline: Deadline, new_wakeup: Callable[[], Wakeup]) -> Flow[None]:
        return self._hub.open(deadline)

    @property
    def server(self) -> Hashable:
        return self._hub.lines  # one for each database, however it is reached

    def wire(self, key: Key) -> Hashable:
        return key._pg or key.pg

    def shown_as(self, key: Key) -> tuple[str, ...]:
        return (key.text, text_of(key.pg))

    def grab(self, ticket: Ticket) -> bool | None:
        """For a thread, which makes the round trip itself if the connection is free."""
        if ticket.new_wakeup is not ThreadWakeup:
            return None
        try:
            request = self._hub.join(ticket, ticket.wire)
            if request is not None:
                if request.serves:
                    request.serve()
                if ticket.state is State.WAITING:
                    request.block()
            elif ticket.wakeup is not None:
                ticket.wakeup.sleep(ticket.deadline).block()
            return ticket.state is not State.WAITING or self._came_to_nothing(ticket)
        except BaseException:
            self._leave(ticket)
            raise

    def acquire(self, ticket: Ticket) -> Flow[bool]:
        try:
            request = self._hub.join(ticket, ticket.wire)
            if request is not None:
                yield request
            elif (wakeup := ticket.wakeup) is not None:
                yield wakeup.sleep(ticket.deadline)
            return ticket.state is not State.WAITING or self._came_to_nothing(ticket)
        except BaseException:
            self._leave(ticket)
            raise

    def _came_to_nothing(self, ticket: Ticket) -> bool:
        """The wait is over. True if the lock was granted in this last moment."""
        granted = self._leave(ticket)
        if isinstance(ticket.engine_state, BaseException) and not isinstance(ticket.engine_state, Busy):
            raise ticket.engine_state
        return granted

    def _leave(self, ticket: Ticket) -> bool:
        """Whatever ended the wait, the ticket must not stay in its line, to be granted a lock."""
        try:
            return ticket.state is not State.WAITING or self._hub.leave(ticket, ticket.wire)
        except KeyboardInterrupt:  # struck in there
            self._hub.leave(ticket, ticket.wire)
            raise

    def drop(self, ticket: Ticket) -> bool:
        """For a thread, as ``grab``."""
        if ticket.new_wakeup is not ThreadWakeup:
            return False
        request = self._hub.release(ticket, ticket.wire, ThreadWakeup)
        if request is not None:
            if request.serves:
                request.serve()
            if not request.done or request.error is not None or not request.result:
                run(self._unlocked(ticket, request))
        return True

    def release(self, ticket: Ticket) -> Flow[None]:
        request = self._hub.release(ticket, ticket.wire, ticket.new_wakeup)
        return self._unlocked(ticket, request) if request is not None else at_once(None)

    def _unlocked(self, ticket: Ticket, request: Unlock) -> Flow[None]:
        yield request
        if not request.done:
            if self._hub.must_not_wait(request.connection):
                return
            raise BackendUnavailable(
                f"{ticket.key}: PostgreSQL did not confirm the release in {ANSWER_SECONDS:g} s; the lock is free as "
                "soon as it does, or when the connection ends",
                key=ticket.key,
            )
        if request.error is not None or not request.result:
            why = request.error or "the server says it was not held"
            raise LockLost(f"{ticket.key} was lost before it was released: {why}", key=ticket.key)

    def let_go(self, ticket: Ticket) -> None:
        self._hub.give_back(ticket, ticket.wire)

    def take_back(self, ticket: Ticket) -> Flow[None]:
        self.let_go(ticket)
        return at_once(None)

    def holders(self) -> Flow[list[Holder]]:
        rows = yield from self._lock_rows()
        with self._hub.mutex:
            lines = list(self._hub.lines.by_key.values())
            here = {line.key: (line.holder, len(line.waiting)) for line in lines}
        return holders_from(rows, here, describe)

    def evict(self, key: Key, *, force: bool) -> Flow[bool | Eviction]:
        connection = self._hub.evict_here(key.pg)
        if connection is not None:
            yield Ask(self._hub, "locks", (), Deadline.after(ANSWER_SECONDS), connection)  # after the unlock
            return True
        rows = yield from self._lock_rows()
        holder = next((row for row in rows if row.key == key.pg and row.granted), None)
        if holder is None:
            return False
        if force:
            yield from self._ask("terminate", (b"%d" % holder.pid,))
            return Eviction(True, others=sum(row.granted and row.pid == holder.pid for row in rows) - 1)
        classid = "" if key.pg.classid is None else str(key.pg.classid)
        yield from self._ask("ask_to_evict", (f"{classid}:{key.pg.objid}".encode(),))
        return True

    def who_holds(self, ticket: Ticket) -> str:
        line = self._hub.lines.by_key.get(ticket.key.pg)
        return f"; held by {told(line.holder)}" if line is not None and line.holder is not None else ""

    def close(self) -> Flow[None]:
        if self._closed:
            return
        self._closed = True
        try:
            # What was taken back is free when this returns, if the server answers.
            deadline = Deadline.after(CLOSE_SECONDS)
            for connection in self._hub.busy_connections():
                yield Ask(self._hub, "locks", (), deadline, connection)
        finally:
            hub = _hubs.give_back(self._identity)
            if hub is not None:
                hub.close()

    def _lock_rows(self) -> Flow[list[LockRow]]:
        result = yield from self._ask("locks", ())
        return parse_rows(result)

    def _ask(self, statement: str, parameters: tuple[bytes, ...]) -> Flow[Any]:
        deadline = Deadline.after(ANSWER_SECONDS)
        # One that holds nothing may have been gone for long, which is found out when it is used: perhaps all of them.
        for _ in range(self._hub.max_shared + 1):
            yield from self._hub.open(deadline)
            request = Ask(self._hub, statement, parameters, deadline)
            yield request
            if request.connection is None or request.connection.broken is None:
                break
        if request.error is not None or not request.done:
            raise BackendUnavailable(
                f"PostgreSQL could not be asked: {request.error or 'no answer'}"
            ) from request.error
        return request.result

    def __repr__(self) -> str:
        return "postgresql://…"


def checked_options(options: dict[str, Any]) -> dict[str, Any]:
    unknown = set(options) - {"pooler", "fence", *_NUMBERS}
    if unknown:
        raise InvalidOption(f"{', '.join(sorted(unknown))}: the postgresql engine takes no such option")
    if options.get("pooler") not in (None, "session"):
        raise InvalidOption(f"pooler={options['pooler']!r}: it is 'session' or left out")
    if not isinstance(options.get("fence", False), bool):
        raise InvalidOption(f"fence={options['fence']!r}: it is True or False")
    for name in _NUMBERS:
        value = options.get(name, 1)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise InvalidOption(f"{name}={value!r}: give a whole number of connections, at least 1")
    return options
