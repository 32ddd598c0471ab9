"""The lease table beside the advisory locks, on one server: hold and release, drain. Without bounds.

Each hold and release of a lease is two transactions that write. The server does not wait for the disk (``fsync`` off):
what is compared is the work, not the disk.
"""

from __future__ import annotations

import sys
import tempfile

from holdfast import Locks, embedded, schema

from .burst import ROUNDS, _across_processes
from .figure import Figure, show
from .timing import call_by_call


def measure() -> list[Figure]:
    with tempfile.TemporaryDirectory() as folder, embedded.start_postgres(folder, options={"fsync": "off"}) as server:
        schema.upgrade(server.url)
        leases = f"{server.url}{'&' if '?' in server.url else '?'}mode=lease"
        return [*_uncontended(server.url, leases), *_drain(server.url, leases)]


def _uncontended(advisory: str, leases: str) -> list[Figure]:
    with Locks.from_url(advisory) as advisory_locks, Locks.from_url(leases) as lease_locks:

        def hold(locks: Locks) -> None:
            with locks.hold("benchmark"):
                pass

        calls = {"advisory": lambda: hold(advisory_locks), "lease": lambda: hold(lease_locks)}
        for call in calls.values():
            call()
        spans = call_by_call(calls, number=500, rounds=4)
    return [
        Figure("hold and release, lease table", spans["lease"] * 1e6, "µs"),
        Figure("  advisory locks", spans["advisory"] * 1e6, "µs"),
    ]


def _drain(advisory: str, leases: str) -> list[Figure]:
    return [
        Figure(name.format(kind), min(_across_processes(kind, url).ratio for _ in range(ROUNDS)), "× ideal")
        for kind in ("threads", "tasks")
        for name, url in (("drain, 4 processes of 8 {}, lease table", leases), ("  advisory locks, {}", advisory))
    ]


if __name__ == "__main__":
    sys.exit(not show(measure()))
