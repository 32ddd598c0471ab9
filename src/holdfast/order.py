"""Lock-order checking, lockdep-style: says that two places *can* dead-lock before they do.

Whoever waits for lock B while holding lock A has shown the order A, B. If the opposite order was seen before, by anyone
in this process, the two can block each other for as long as their deadlines allow; no server detects it when the locks
sit on two connections. Orders are kept between namespaces, and between the keys inside one. A try never waits, so it
shows no order. Memory is bounded: the oldest orders are forgotten.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections import OrderedDict, deque
from collections.abc import Hashable, Iterable
from os.path import dirname
from typing import Final, Literal, NamedTuple

from . import fork
from .errors import InvalidOption, LockOrderWarning, WouldDeadlock
from .keys import Key
from .owner import Owner
from .ticket import Ticket

OrderCheck = Literal["off", "warn", "raise"]

MAX_ORDERS: Final = 10_000
_MAX_SEARCH: Final = 1_000

_PACKAGE: Final = dirname(__file__)


def order_check(value: str) -> OrderCheck:
    if value in ("off", "warn", "raise"):
        return value  # type: ignore[return-value]
    raise InvalidOption(f"order={value!r}: it is 'off', 'warn' or 'raise'")


class Inversion(NamedTuple):
    message: str
    first: bool
    """Whether it was not reported before."""


class SeenOrders:
    """A bounded graph of who came before whom, with the place where each order was first seen."""

    def __init__(self, limit: int = MAX_ORDERS) -> None:
        self.limit = limit
        self.after: dict[Hashable, dict[Hashable, str]] = {}
        self._reported: OrderedDict[tuple[Hashable, Hashable], None] = OrderedDict()
        self._age: OrderedDict[tuple[Hashable, Hashable], None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._age)

    def has(self, first: Hashable, second: Hashable) -> bool:
        return second in self.after.get(first, ())

    def add(self, first: Hashable, second: Hashable, place: str) -> None:
        self.after.setdefault(first, {})[second] = place
        self._age[first, second] = None
        while len(self._age) > self.limit:
            (old_first, old_second), _ = self._age.popitem(last=False)
            followers = self.after[old_first]
            del followers[old_second]
            if not followers:
                del self.after[old_first]

    def report(self, first: Hashable, second: Hashable) -> bool:
        """Whether this inversion is news."""
        if (first, second) in self._reported:
            return False
        self._reported[first, second] = None
        if len(self._reported) > self.limit:
            self._reported.popitem(last=False)
        return True

    def place_of_path(self, first: Hashable, last: Hashable) -> str | None:
        """Where ``first`` was seen to come before ``last``, through any number of others; None if it was not."""
        queue: deque[tuple[Hashable, str | None]] = deque([(first, None)])
        seen = {first}
        while queue and len(seen) <= _MAX_SEARCH:
            node, start = queue.popleft()
            for follower, place in self.after.get(node, {}).items():
                if follower == last:
                    return start or place
                if follower not in seen:
                    seen.add(follower)
                    queue.append((follower, start or place))
        return None


class _Orders:
    def __init__(self) -> None:
        self.mutex = threading.Lock()
        self.graph = SeenOrders()


_seen = _Orders()


def reset() -> None:
    """Forgets every order seen so far in this process."""
    global _seen
    _seen = _Orders()


fork.in_child(reset)


def check(mode: OrderCheck, owner: Owner, ticket: Ticket) -> None:
    """Notes that ``owner`` is about to wait for ``ticket`` while holding others; reports an inversion, once."""
    if mode == "off" or not owner.held:
        return
    for before in _directly_before(owner):
        inversion = _note_order(before, ticket)
        if inversion is None:
            continue
        if mode == "raise":
            raise WouldDeadlock(inversion.message, key=ticket.key)
        if inversion.first:
            warnings.warn(inversion.message, LockOrderWarning, stacklevel=_callers_depth() + 1)


def _directly_before(owner: Owner) -> Iterable[Ticket]:
    # Back to the last lock that was waited for: whatever came before that one has an order with it already.
    for held in reversed(list(owner.held.values())):
        yield held
        if held.waits:
            return


def _note_order(before: Ticket, ticket: Ticket) -> Inversion | None:
    first, second = _nodes(before, ticket)
    orders = _seen
    if orders.graph.has(first, second):
        return None
    place = _callers_place()
    with orders.mutex:
        opposite = orders.graph.place_of_path(second, first)
        if opposite is None:
            orders.graph.add(first, second, place)
            return None
        first_time = orders.graph.report(first, second)
    message = (
        f"lock order inverted: {place} waits for {ticket.key} while holding {before.key}, but the opposite order was "
        f"seen at {opposite}; the two can dead-lock. Take them in one order everywhere, or together with hold_many()"
    )
    return Inversion(message, first_time)


def _nodes(before: Ticket, ticket: Ticket) -> tuple[Hashable, Hashable]:
    first, second = _namespace(before), _namespace(ticket)
    return (first, second) if first != second else (before.lock, ticket.lock)


def _namespace(ticket: Ticket) -> Hashable:
    key: Key = ticket.key
    if key.namespace is None:
        return ticket.lock  # string keys have nothing in common: each stands for itself
    return ("namespace", ticket.server, key.space, key.namespace)


def _callers_place() -> str:
    frame = sys._getframe(_callers_depth())
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _callers_depth() -> int:
    """How many frames up the first one outside this package is."""
    depth, frame = 0, sys._getframe(1)
    while frame.f_back is not None and dirname(frame.f_code.co_filename).startswith(_PACKAGE):
        depth, frame = depth + 1, frame.f_back
    return depth
