"""The thread of a house that renews what is held, gives back what nobody waits for, and notices what has run out.

It sleeps until the first of these is due: for ever, if nothing is held. Every request that it makes has a deadline by
which the next lease would run out, so that a holder learns of its loss on time, also while the server is silent.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from math import inf
from threading import TIMEOUT_MAX, Lock, Thread, current_thread
from time import monotonic
from typing import TYPE_CHECKING, Final

from ...deadline import Deadline
from ...errors import LockError
from ...flow import run
from .lease import NOT_OURS, Lease

if TYPE_CHECKING:
    from .house import Errand, House

_MANY: Final = 500
"""How many leases are renewed in one request."""
_AHEAD: Final = 0.1
"""What part of its time a lease may be renewed early, to go along with others."""
_RETRY: Final = 1.0
_QUIET_LOOKS: Final = 10
_QUIET_PAUSE: Final = 1.0
"""Seconds between the looks, so many times, before it sleeps for ever."""
_PATIENCE: Final = 5.0
"""Seconds that one request may take, if nothing runs out before."""
_STOPPING: Final = 2.0
"""Seconds for what is still to be given back when the last client is closed."""

_log = logging.getLogger("holdfast")


class Attendant:
    def __init__(self, house: House) -> None:
        self._house = house
        self._next_look = inf
        self._renew_all = False
        self._not_before = 0.0
        """No renewal before: the last one failed."""
        self._quiet = 0
        self._stopping = False
        # A bare lock, opened to wake the thread: anything of `threading` that is written in Python could be entered
        # twice by one thread, when the garbage collector runs a finaliser there.
        self._gate = Lock()
        self._gate.acquire()
        self._thread = Thread(target=self._run, name="holdfast-lease", daemon=True)
        self._thread.start()

    @property
    def is_this_thread(self) -> bool:
        return self._thread is current_thread()

    def look_by(self, at: float) -> None:
        """Something is due then. Never waits."""
        if at < self._next_look:
            self._next_look = at
            self._wake()

    def renew_all(self) -> None:
        self._renew_all = True
        self.look_by(0.0)

    def stop(self) -> None:
        self._stopping = True
        self._wake()
        if self._thread is not current_thread():
            self._thread.join(2 * _STOPPING)

    def _wake(self) -> None:
        try:
            self._gate.release()
        except RuntimeError:  # open: it is awake
            pass

    def _run(self) -> None:
        while not self._stopping:
            self._gate.acquire(timeout=min(max(0.0, self._next_look - monotonic()), TIMEOUT_MAX))
            self._next_look = inf  # before looking: what becomes due from now on lowers it again, and wakes
            try:
                self._look()
            except Exception:
                _log.exception("action=lease_attendant_failed")
                self.look_by(monotonic() + _RETRY)
        self._last_errands()

    def _look(self) -> None:
        self._drop_run_out()
        self._renew()
        self._do_errands()
        held = self._held()
        due = min((lease.ticket.expires_at for lease in held), default=inf)
        due = min(due, *(max(lease.renew_at, self._not_before) for lease in held if not lease.changing), inf)
        due = min(due, *(errand.at for errand in list(self._house.errands.values())), inf)
        if due == inf and self._quiet < _QUIET_LOOKS:
            # Locks may be taken and released all the time: to be woken for each would cost more than the lock.
            self._quiet += 1
            due = monotonic() + _QUIET_PAUSE
        else:
            self._quiet = 0
        self._next_look = min(self._next_look, due)  # if it was lowered in this very moment, the gate is open

    def _held(self) -> list[Lease]:
        with self._house.mutex:
            return [lease for lease in self._house.leases.values() if lease.held]

    def _drop_run_out(self) -> None:
        now = monotonic()
        for lease in self._held():
            if lease.ticket.expires_at <= now:
                self._house.lose(lease, "its lease ran out before it could be renewed")

    def _deadline(self) -> Deadline:
        """By when the thread must be back: a lease that runs out meanwhile must be told."""
        first_end = min((lease.ticket.expires_at for lease in self._held()), default=inf)
        return Deadline(min(first_end, monotonic() + _PATIENCE))

    # Renewing

    def _renew(self) -> None:
        now, everything = monotonic(), self._renew_all
        if now < self._not_before and not everything:
            return
        self._renew_all = False
        due = [
            lease
            for lease in self._held()
            if not lease.changing and (everything or lease.renew_at - lease.ttl * _AHEAD <= now)
        ]
        if any(everything or lease.renew_at <= now for lease in due):
            for some in _chunks(due):
                self._renew_some(some)

    def _renew_some(self, leases: list[Lease]) -> None:
        house = self._house
        with house.mutex:
            ends = [lease.change(lease.ttl) for lease in leases]
        answers: list[bool | None] = [None] * len(leases)
        error: object = "not all were answered for"
        try:
            asked = [(lease.name, lease.token, lease.ttl) for lease in leases]
            answers = run(house.backend.extend(asked, self._deadline()))
        except LockError as failure:
            error = failure
        finally:
            with house.mutex:
                for lease, end, ours in zip(leases, ends, answers, strict=True):
                    # Not known: it was asked for no less than is left, so nothing has become shorter.
                    lease.changed(end, known=ours is not None)
        unknown = [lease.ttl for lease, ours in zip(leases, answers, strict=True) if ours is None]
        if unknown:
            _log.warning("action=lease_renewal_failed leases=%d error=%s", len(unknown), error)
            self._not_before = monotonic() + min(_RETRY, min(unknown) / 10)
        for lease, ours in zip(leases, answers, strict=True):
            if ours is False:
                house.lose(lease, NOT_OURS)

    # Giving back

    def _do_errands(self) -> None:
        for label, errand in list(self._house.errands.items()):
            if self._stopping or self._house.errands.get(label) is not errand or errand.at > monotonic():
                continue
            self._do(label, errand, self._deadline())
            self._drop_run_out()

    def _do(self, label: str, errand: Errand, deadline: Deadline) -> None:
        house = self._house
        asked_at = monotonic()
        try:
            released = run(house.backend.release(errand.name, errand.token, deadline))
        except LockError:
            house.ask_again_for(errand.name)
            errand.at = monotonic() + _RETRY
            if errand.at > errand.until:
                house.errands.pop(label, None)
            return
        if errand.was_retry:
            self.renew_all()  # which tells the older handle
        errand.times -= 1
        errand.at = monotonic() + _RETRY
        if errand.times <= 0:
            house.errands.pop(label, None)
        house.pass_on(released, asked_at)

    def _last_errands(self) -> None:
        deadline = Deadline.after(_STOPPING)
        for label, errand in list(self._house.errands.items()):
            if not deadline.passed:
                self._do(label, errand, deadline)


def _chunks(leases: list[Lease]) -> Iterator[list[Lease]]:
    for start in range(0, len(leases), _MANY):
        yield leases[start : start + _MANY]
