"""Lease engines that break their promises, each in one way: on the real lease table, asked wrongly."""

import os
from collections.abc import Sequence
from itertools import count

import psycopg

from holdfast.deadline import Deadline
from holdfast.engines.lease import Answer, Released, Wish
from holdfast.engines.postgres.lease.backend import LeaseTable, TableEngine
from holdfast.flow import Flow, at_once

URL = os.environ["HOLDFAST_TEST_DATABASE_URL"]


def engine_on(backend: type[LeaseTable]) -> TableEngine:
    return TableEngine(("broken", backend), lambda: backend(lambda: psycopg.connect(URL), None))


class _ReleasesAnyToken(LeaseTable):
    def release(self, name: str, token: str, deadline: Deadline) -> Flow[Released]:
        return Released((yield from self.evict(name, deadline)))


class _ExtensionsAddUp(LeaseTable):
    def __init__(self, *given: object) -> None:
        super().__init__(*given)  # type: ignore[arg-type]
        self.sums: dict[str, float] = {}

    def extend(self, leases: Sequence[tuple[str, str, float]], deadline: Deadline) -> Flow[list[bool]]:
        for _, token, ttl in leases:
            self.sums[token] = self.sums.get(token, 0) + ttl
        return super().extend([(name, token, self.sums[token]) for name, token, _ in leases], deadline)


class _NeverRenews(LeaseTable):
    def extend(self, leases: Sequence[tuple[str, str, float]], deadline: Deadline) -> Flow[list[bool]]:
        return at_once([True] * len(leases))


class _FencesFall(LeaseTable):
    falling = count(10**9, -1)

    def take(self, wish: Wish, deadline: Deadline) -> Flow[Answer]:
        answer = yield from super().take(wish, deadline)
        return answer if answer.fence is None else answer._replace(fence=next(self.falling))


class _GivesAwayWhatIsHeld(LeaseTable):
    """As if a lease were over as soon as it began."""

    def take(self, wish: Wish, deadline: Deadline) -> Flow[Answer]:
        return super().take(wish._replace(ttl=0.001), deadline)


def sound() -> TableEngine:
    return engine_on(LeaseTable)


def releases_any_token() -> TableEngine:
    return engine_on(_ReleasesAnyToken)


def extensions_add_up() -> TableEngine:
    return engine_on(_ExtensionsAddUp)


def never_renews() -> TableEngine:
    return engine_on(_NeverRenews)


def fences_fall() -> TableEngine:
    return engine_on(_FencesFall)


def gives_away_what_is_held() -> TableEngine:
    return engine_on(_GivesAwayWhatIsHeld)
