"""What ``Locks`` and ``AsyncLocks`` do, written once: as flows (see ``holdfast.flow``) that either of them drives."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from threading import Lock
from typing import Any

from . import fork, order
from .deadline import Deadline, seconds
from .engines.base import NOT_DETACHABLE, Engine, Eviction, Holder
from .errors import BackendUnavailable, ClientClosed, InvalidOption, LockError, NotAcquired, NotHeld, WouldDeadlock
from .flow import Flow, Wakeup
from .keys import Key, canonical_order, key_of
from .options import (
    DEFAULT_TTL,
    DEFAULT_WAIT,
    Unavailable,
    Unset,
    checked_note,
    checked_owner,
    checked_space,
    checked_ttl,
    proceeds,
)
from .owner import current, running_loop
from .reentry import may_wait
from .ticket import State, Ticket
from .token import Token


class Client:
    """The state and the flows behind one ``Locks`` or ``AsyncLocks``."""

    def __init__(
        self,
        engine: Engine,
        new_wakeup: Callable[[], Wakeup],
        *,
        blocks: bool,
        space: str,
        wait: float | None,
        ttl: float | None,
        order_check: str,
    ) -> None:
        self.engine = engine
        self.closed = False
        self.unprotected = 0
        """How many blocks ran without a lock, since the engine was unavailable and they were told to proceed."""
        self._new_wakeup = new_wakeup
        self._blocks = blocks
        self._space = checked_space(space)
        self._wait = seconds("wait", wait)
        self._ttl = checked_ttl(engine, ttl, None)
        self._order = order.order_check(order_check)
        self._tickets: set[Ticket] = set()
        self._mutex = Lock()
        fork.in_child(self._start_afresh)

    # What a call asks for

    def key(self, parts: tuple[object, ...]) -> Key:
        return key_of(self._space, parts)

    def ticket(
        self,
        key: Key,
        wait: float | None | Unset,
        ttl: float | None | Unset,
        note: str | None,
        owner: str | None = None,
        unavailable: Unavailable = "refuse",
    ) -> Ticket:
        """A ticket for a call with these options. Every mistake in them comes out here, before anything is acquired."""
        return Ticket(
            key,
            self.engine.wire(key),
            self._new_wakeup,
            self._wait if isinstance(wait, Unset) else seconds("wait", wait),
            self._ttl if isinstance(ttl, Unset) else checked_ttl(self.engine, ttl, key),
            note if note is None else checked_note(note),
            owner if owner is None else checked_owner(self.engine, owner, key),
            unavailable != "refuse" and proceeds(unavailable),
        )

    def tickets(
        self,
        keys: Iterable[Any],
        wait: float | None | Unset,
        ttl: float | None | Unset,
        note: str | None,
        unavailable: Unavailable = "refuse",
    ) -> tuple[list[Ticket], list[int]]:
        """A ticket for each different lock, in canonical order; and for each given key the number of its ticket."""
        if isinstance(keys, str) or not isinstance(keys, Iterable):
            raise InvalidOption(f"keys={keys!r}: give a list of keys, not one string or number")
        given = [Key.of(key, space=self._space) for key in keys]
        if not given:
            raise InvalidOption("keys=[]: name at least one key")
        by_wire: dict[Any, Ticket] = {}
        for key in sorted(given, key=canonical_order):
            by_wire.setdefault(self.engine.wire(key), self.ticket(key, wait, ttl, note, None, unavailable))
        place = {wire: number for number, wire in enumerate(by_wire)}
        tickets = list(by_wire.values())
        if len(tickets) > 1 and tickets[0].wait is None:
            raise WouldDeadlock(
                f"wait=None for {len(tickets)} keys at once ({tickets[0].key}, …): a wait that holds other locks must "
                "have a limit; give wait= in seconds"
            )
        return tickets, [place[self.engine.wire(key)] for key in given]

    def check_detachable(self) -> None:
        if not self.engine.capabilities.detachable:
            raise self.engine.unsupported("a token", NOT_DETACHABLE, None)

    # From the wait to the release

    def open(self, ticket: Ticket) -> Flow[None]:
        """Gets the engine ready, if it is not."""
        yield from self._open(ticket.deadline if ticket.waits else Deadline.after(DEFAULT_WAIT))

    def begin(self, ticket: Ticket) -> bool:
        """Before anything is acquired. False for a try that finds its own lock; raises if the wait could never end."""
        ticket.at(self.engine.server)
        loop = running_loop()
        ticket.owner = owner = current(loop)
        # Who holds nothing can neither re-enter nor take locks in the wrong order.
        if (owner.held or (loop is not None and self._blocks)) and not may_wait(
            ticket, owner, loop if self._blocks else None, self._order
        ):
            return False
        self._register(ticket)
        return True

    def settle(self, ticket: Ticket, granted: bool) -> bool:
        """After the engine's answer."""
        if self.closed:
            self._check_open()
        if granted:
            ticket.settle()
        else:
            self._tickets.discard(ticket)
        return granted

    def proceed(self, ticket: Ticket, error: BackendUnavailable) -> bool:
        """The engine is unavailable: raises, or has the block run without a lock if that was asked for."""
        if not ticket.proceeds:
            raise error
        import logging

        self._tickets.discard(ticket)
        ticket.owner = current(running_loop())
        ticket.unprotected()
        with self._mutex:
            self.unprotected += 1
        logging.getLogger("holdfast").warning("action=unprotected key=%s reason=%s", ticket.key, error)
        return True

    def attach(self, ticket: Ticket, secret: str) -> Flow[bool]:
        """Takes a detached lock up again."""
        ticket.owner = current(running_loop())
        ticket.at(self.engine.server)
        self._register(ticket)
        granted = yield from self.engine.attach(ticket, secret)
        if not granted:
            raise NotHeld(
                f"{ticket.key}: the token is stale; its lock was released, evicted, or attached elsewhere",
                key=ticket.key,
            )
        return granted

    def abandon(self, ticket: Ticket) -> Flow[None]:
        """Undoes an ``enter`` that was interrupted: gives back what may have been granted."""
        self._tickets.discard(ticket)
        if ticket.held:
            yield from self.release(ticket)

    def drop(self, ticket: Ticket) -> bool:
        """``release`` by the shortest way. False if what is left of it is the engine's ``release``."""
        try:
            ticket.end(State.RELEASED)
            self._tickets.discard(ticket)
            return not ticket.protected or self.engine.drop(ticket)
        except (KeyboardInterrupt, SystemExit):
            # It struck half-way, and no one will come back for this ticket. Releasing twice does no harm.
            if ticket.state is State.RELEASED and ticket.protected:
                self.engine.let_go(ticket)
            raise

    def release(self, ticket: Ticket) -> Flow[None]:
        """Releases; raises if there is nothing to release (any more)."""
        if not self.drop(ticket):
            yield from self.finish_release(ticket)

    def finish_release(self, ticket: Ticket) -> Flow[None]:
        """What ``drop`` left to do."""
        try:
            yield from self.engine.release(ticket)
        except BackendUnavailable as error:
            if not ticket.proceeds:
                raise
            # The block has run. An error now would have it run again, by whoever goes on without the engine.
            _log_unreleased(ticket, error)
        except (KeyboardInterrupt, SystemExit):
            yield from self.engine.release(ticket)
            raise

    def can_wait(self, ticket: Ticket, error: BaseException | None) -> bool:
        """False in a coroutine that the garbage collector ends, in whatever task or thread it happens to run."""
        return self._blocks or not isinstance(error, GeneratorExit) or current(running_loop()) is ticket.owner

    def let_go(self, ticket: Ticket) -> None:
        """Releases where nobody can wait for it."""
        self._tickets.discard(ticket)
        if ticket.held:
            ticket.end(State.RELEASED)
            if ticket.protected:
                self.engine.let_go(ticket)

    def make_sure(self, ticket: Ticket) -> None:
        """Ctrl-C has struck at the end of a block: whatever was done of the release, or not, the lock is let go."""
        self.let_go(ticket)
        if ticket.state is State.RELEASED and ticket.protected:
            self.engine.let_go(ticket)  # twice does no harm

    def drop_lost(self, ticket: Ticket) -> Flow[None]:
        """Lets the engine clean up after a lost lock."""
        self._tickets.discard(ticket)
        yield from self.engine.release(ticket)

    def extend(self, ticket: Ticket, ttl: float | None) -> Flow[None]:
        ticket.check()
        if ttl is None:
            ttl = ticket.ttl if ticket.ttl is not None else DEFAULT_TTL
        elif self.engine.capabilities.expiring:
            checked_ttl(self.engine, ttl, ticket.key)
        if ticket.protected:
            yield from self.engine.extend(ticket, ttl)

    def detach(self, ticket: Ticket) -> Flow[str]:
        ticket.check()
        if not ticket.protected:
            raise NotHeld(f"{ticket.key}: this block runs unprotected; there is no lock to detach", key=ticket.key)
        secret = yield from self.engine.detach(ticket)
        ticket.end(State.DETACHED)
        self._tickets.discard(ticket)
        return str(Token(ticket.key, secret))

    # By a token, without taking the lock up

    def extend_detached(self, token: str, ttl: float | Unset) -> Flow[bool]:
        key, secret = self._detached(token)
        checked = self._ttl if isinstance(ttl, Unset) else checked_ttl(self.engine, ttl, key)
        yield from self._open(Deadline.after(DEFAULT_WAIT))
        return (yield from self.engine.extend_detached(key, secret, DEFAULT_TTL if checked is None else checked))

    def release_detached(self, token: str) -> Flow[bool]:
        key, secret = self._detached(token)
        yield from self._open(Deadline.after(DEFAULT_WAIT))
        return (yield from self.engine.release_detached(key, secret))

    def _detached(self, token: str) -> Token:
        self.check_detachable()
        key, secret = Token.parse(token)
        return Token(self.key((key,)), secret)

    # For operators, and the end

    def holder(self, key: Key) -> Flow[Holder | None]:
        yield from self._open(Deadline.after(DEFAULT_WAIT))
        return (yield from self.engine.holder(key))

    def holders(self) -> Flow[list[Holder]]:
        yield from self._open(Deadline.after(DEFAULT_WAIT))
        return (yield from self.engine.holders())

    def evict(self, key: Key, force: bool) -> Flow[Eviction]:
        yield from self._open(Deadline.after(DEFAULT_WAIT))
        outcome = yield from self.engine.evict(key, force=force)
        return outcome if isinstance(outcome, Eviction) else Eviction(outcome)

    def close(self) -> Flow[None]:
        """Ends every wait, takes every lock back (its holder is told), and closes the engine."""
        with self._mutex:
            if self.closed:
                return
            self.closed = True
            tickets = list(self._tickets)
        failure: LockError | None = None
        for ticket in tickets:
            if ticket.lose("its client was closed"):
                try:
                    yield from self.engine.take_back(ticket)
                except LockError as error:  # the others are let go all the same
                    failure = failure or error
            else:
                ticket.deadline.at = 0.0
                wakeup = ticket.wakeup
                if wakeup is not None:
                    wakeup.wake()
        self._tickets.clear()
        yield from self.engine.close()
        if failure is not None:
            raise failure

    def not_acquired(self, ticket: Ticket) -> NotAcquired:
        waited = "and was tried once" if not ticket.wait else f"for all of the {ticket.wait:g} s that could be waited"
        return NotAcquired(f"{ticket.key} was busy {waited}{self.engine.who_holds(ticket)}", key=ticket.key)

    # Inside

    def _open(self, deadline: Deadline) -> Flow[None]:
        self._check_open()
        if not self.engine.ready:
            yield from self.engine.open(deadline, self._new_wakeup)

    def _register(self, ticket: Ticket) -> None:
        # In this order, and without a mutex: either ``close`` finds the ticket, or this finds the client closed.
        self._tickets.add(ticket)
        if self.closed:
            self._tickets.discard(ticket)
            self._check_open()

    def _check_open(self) -> None:
        if self.closed:
            raise ClientClosed

    def _start_afresh(self) -> None:
        self._mutex = Lock()
        self._tickets = set()


def _log_unreleased(ticket: Ticket, error: BackendUnavailable) -> None:
    import logging

    logging.getLogger("holdfast").warning("action=unreleased key=%s reason=%s", ticket.key, error)
