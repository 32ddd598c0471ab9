"""The engine of locks that are leases, on whatever backend."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from math import inf
from time import monotonic
from typing import Final

from ...deadline import Deadline
from ...errors import BackendUnavailable, LockError, LockLost
from ...flow import Call, Flow, Wakeup
from ...keys import Key
from ...ticket import State, Ticket
from ..base import Capabilities, Engine, Eviction, Holder
from ..late import asked_amid
from .backend import ASK_AGAIN, LeaseBackend, NoAnswer, Released
from .house import House, houses
from .lease import NOT_OURS, Lease, label_of

ANSWER_SECONDS: Final = 15.0
"""How long an answer is waited for that the server gives at once, if it gives any."""
LEAVE_SECONDS: Final = 0.3
"""How long a waiter that goes waits for the server to hear of it. If it does not, the attendant sees to it."""
CLOSE_SECONDS: Final = 2.0
"""How long closing waits for the server to confirm what was given back."""


class LeaseEngine(Engine):
    """Strict order of arrival across processes, fenced, detachable. A lock ends by itself when it is not renewed."""

    capabilities = Capabilities(fenced=True, fair=True, expiring=True, detachable=True, scope="network")

    def __init__(self, identity: Hashable, new_backend: Callable[[], LeaseBackend]) -> None:
        self._identity = identity
        self._house: House = houses.take(identity, lambda: House(new_backend()))
        self._backend = self._house.backend
        self.scheme = self._backend.scheme
        self._closed = False

    @property
    def ready(self) -> bool:
        return self._backend.ready

    def open(self, deadline: Deadline, new_wakeup: Callable[[], Wakeup]) -> Flow[None]:
        return self._backend.open(deadline, new_wakeup)

    @property
    def server(self) -> Hashable:
        return self._backend.server

    def wire(self, key: Key) -> Hashable:
        return key.text

    # Waiting

    def acquire(self, ticket: Ticket) -> Flow[bool]:
        if self._backend.amid():
            raise asked_amid(ticket)
        house, lease = self._house, Lease(self, ticket)
        try:
            house.enter(lease)
            yield from self._wait(lease)
            if ticket.state is State.WAITING and not house.leave(lease):
                yield from self._leave(lease)
        except BaseException as interruption:
            if ticket.state is State.WAITING and not house.leave(lease):
                if isinstance(interruption, GeneratorExit | KeyboardInterrupt | SystemExit):
                    house.give_up(lease)  # nobody can wait here, or should
                else:
                    yield from self._leave(lease)
            raise
        return ticket.state is not State.WAITING

    def _wait(self, lease: Lease) -> Flow[None]:
        """Until it is granted, or busy and not waited for, or the deadline has passed."""
        ticket = lease.ticket
        while True:
            with self._house.mutex:  # whoever grants it wakes it first: so it must not have been granted
                if ticket.state is not State.WAITING:
                    return
                wakeup = ticket.arm()
            if lease.ask_at <= monotonic():
                if not (yield from self._ask(lease)):
                    return
            elif ticket.deadline.passed:
                return
            else:
                yield wakeup.sleep(Deadline(min(ticket.deadline.at, lease.ask_at)))

    def _ask(self, lease: Lease) -> Flow[bool]:
        """Asks the server. Whether there is anything to wait for."""
        ticket, house = lease.ticket, self._house
        lease.ask_at, lease.unanswered, asked_at = inf, True, monotonic()
        # A try does not wait for the lock, but it does wait for the answer. And however long a lock is waited for, an
        # answer that has not come by now is not to be had on this connection.
        deadline = Deadline.after(ANSWER_SECONDS)
        if ticket.waits:
            deadline.at = min(deadline.at, ticket.deadline.at)
        try:
            answer = yield from self._backend.take(lease.wish(), deadline)
        except NoAnswer:
            if not ticket.waits:
                raise
            lease.ask_at = 0.0
            return not ticket.deadline.passed
        lease.unanswered = False
        if answer.fence is not None:
            if ticket.owner_text is not None:
                house.taken_anew(lease, answer.fence)
            house.granted(lease, answer.fence, asked_at)
            ticket.wakeup = None  # it leads to the task: one whose loop is closed now could never be collected
            return False
        if answer.again is None:
            return False
        ticket.waited = True
        with house.mutex:  # a message that came before the answer has set an earlier time
            lease.ask_at = min(lease.ask_at, monotonic() + min(answer.again, ASK_AGAIN))
        return True

    def _leave(self, lease: Lease) -> Flow[None]:
        """Gives up the place in the queue, and whatever was got there meanwhile; soon, if not at once."""
        if lease.unanswered:
            self._house.give_up(lease)
            return
        try:
            yield from self._give_back(lease, LEAVE_SECONDS)
        except LockError:
            pass  # the attendant goes on trying

    def _give_back(self, lease: Lease, seconds: float) -> Flow[Released]:
        house, asked_at = self._house, monotonic()
        try:
            released = yield from self._backend.release(lease.name, lease.token, Deadline.after(seconds))
            house.given_back(lease)
            house.pass_on(released, asked_at)
            return released
        except BaseException:
            house.give_up(lease)
            house.ask_again_for(lease.name)  # the answer may have named an heir
            raise

    # Releasing

    def release(self, ticket: Ticket) -> Flow[None]:
        lease, house = ticket.engine_state, self._house
        if not isinstance(lease, Lease):
            return
        if not house.forget(lease):
            house.hurry(lease)  # it was begun before, and interrupted
            return
        if self._backend.amid() or house.is_attending:
            house.give_up(lease)
            return
        if ticket.state is State.LOST:
            yield from self._leave(lease)  # the server may not know yet
            return
        try:
            released = yield from self._give_back(lease, ANSWER_SECONDS)
        except BackendUnavailable as error:
            raise BackendUnavailable(
                f"{ticket.key}: the release was not confirmed ({error}); the lock is free as soon as it is, or when "
                "its lease ends",
                key=ticket.key,
            ) from error
        if not released.was_ours:
            raise LockLost(f"{ticket.key} was lost before it was released: it ran out, or is another's", key=ticket.key)

    def let_go(self, ticket: Ticket) -> None:
        lease = ticket.engine_state
        if isinstance(lease, Lease) and self._house.forget(lease):
            self._house.give_up(lease)

    def take_back(self, ticket: Ticket) -> Flow[None]:
        lease = ticket.engine_state
        if isinstance(lease, Lease) and self._house.forget(lease):
            yield from self._give_back(lease, CLOSE_SECONDS)

    # While it is held

    def extend(self, ticket: Ticket, ttl: float) -> Flow[None]:
        lease, house = ticket.engine_state, self._house
        with house.mutex:
            lease.ttl = ttl
            end = lease.change(ttl)
        answers: list[bool | None] | None = None
        try:
            answers = yield from self._backend.extend([(lease.name, lease.token, ttl)], Deadline.after(ANSWER_SECONDS))
        finally:
            with house.mutex:
                lease.changed(end, known=answers is not None)
            house.attendant.look_by(lease.renew_at)
        if not answers[0]:
            self._not_ours(lease)

    def detach(self, ticket: Ticket) -> Flow[str]:
        lease = ticket.engine_state
        detached = yield from self._backend.detach(lease.name, lease.token, lease.ttl, Deadline.after(ANSWER_SECONDS))
        if not detached:
            self._not_ours(lease)
        self._house.forget(lease)
        self._house.given_back(lease)
        return str(lease.token)

    def _not_ours(self, lease: Lease) -> None:
        self._house.lose(lease, NOT_OURS)
        lease.ticket.check()

    def attach(self, ticket: Ticket, secret: str) -> Flow[bool]:
        house, lease, asked_at = self._house, Lease(self, ticket), monotonic()
        try:
            house.enter(lease)
            fence = yield from self._backend.rotate(secret, lease.wish(), Deadline.after(ANSWER_SECONDS))
            if fence is not None:
                house.granted(lease, fence, asked_at)
        except BaseException:
            if ticket.state is State.WAITING:  # it may have been got: then nobody else can
                house.give_up(lease)
            raise
        if fence is None:
            house.drop(lease)
            return False
        older = house.leases.get(label_of(secret))
        if older is not None:
            house.lose(older, "it was attached elsewhere")
        return True

    def extend_detached(self, key: Key, secret: str, ttl: float) -> Flow[bool]:
        # Not the backend's `extend`, by which a holder also says where it is to be told.
        return (yield from self._backend.detach(key.text, _sendable(secret), ttl, Deadline.after(ANSWER_SECONDS)))

    def release_detached(self, key: Key, secret: str) -> Flow[bool]:
        asked_at = monotonic()
        try:
            released = yield from self._backend.release(key.text, _sendable(secret), Deadline.after(ANSWER_SECONDS))
        except BaseException:
            self._house.ask_again_for(key.text)
            raise
        self._house.pass_on(released, asked_at)
        return released.was_ours

    # For operators, and the end

    def holder(self, key: Key) -> Flow[Holder | None]:
        return self._backend.holder(key.text, Deadline.after(ANSWER_SECONDS))

    def holders(self) -> Flow[list[Holder]]:
        return self._backend.holders(Deadline.after(ANSWER_SECONDS))

    def evict(self, key: Key, *, force: bool) -> Flow[bool | Eviction]:
        lease = self._house.holder_here(key.text)
        if lease is not None and lease.ticket.lose("it was evicted"):  # told before anybody else can have it
            self._house.forget(lease)
            return (yield from self._give_back(lease, ANSWER_SECONDS)).was_ours
        return (yield from self._backend.evict(key.text, Deadline.after(ANSWER_SECONDS)))

    def close(self) -> Flow[None]:
        if self._closed:
            return
        self._closed = True
        deadline = Deadline.after(CLOSE_SECONDS)
        try:
            for lease in [lease for lease in list(self._house.leases.values()) if lease.engine is self]:
                if not self._house.leave(lease):
                    try:
                        yield from self._give_back(lease, deadline.remaining)
                    except LockError:
                        pass  # it is tried once more at the very end
        except BaseException:
            if (house := houses.give_back(self._identity)) is not None:
                house.close()
            raise
        if (house := houses.give_back(self._identity)) is not None:
            yield Call(house.close)  # which waits for its threads

    def __repr__(self) -> str:
        return f"{self.scheme}://…"


def _sendable(secret: str) -> str:
    """As it is, if it is one that ``new_token`` made; else something that no lock has, and that any server takes."""
    return secret.encode("ascii", "replace").decode().replace("\0", "?")
