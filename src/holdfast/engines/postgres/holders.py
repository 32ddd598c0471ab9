"""Who holds what, from ``pg_locks``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, NamedTuple

from ...keys import PgKey
from ...ticket import Ticket
from ..base import Holder

_MAILBOXES: Final = 97
"""The namespace of the locks by which processes that use the lease table show that they live: nobody's writers."""


class LockRow(NamedTuple):
    pid: int
    key: PgKey
    granted: bool
    application: str
    host: str


def parse_rows(result: Any) -> list[LockRow]:
    def text(row: int, column: int) -> str:
        return (result.get_value(row, column) or b"").decode()

    rows = []
    for row in range(result.ntuples):
        pid, classid, objid = (int(text(row, column)) for column in range(3))
        # pg_locks shows both halves unsigned; objsubid tells the two-int form (2) from the bigint form (1).
        if text(row, 3) == "2":
            key = PgKey(_signed(classid, 32), _signed(objid, 32))
        else:
            key = PgKey(None, _signed(classid << 32 | objid, 64))
        rows.append(LockRow(pid, key, text(row, 4) == "t", text(row, 5), text(row, 7)))
    return rows


def holders_from(
    rows: list[LockRow],
    here: dict[PgKey, tuple[Ticket | None, int]],
    describe: Callable[[Ticket], str],
) -> list[Holder]:
    holders = []
    for row in rows:
        if not row.granted or row.key.classid == _MAILBOXES:
            continue
        ticket, waiting_here = here.get(row.key, (None, 0))
        elsewhere = sum(other.key == row.key and not other.granted for other in rows)
        if ticket is None and waiting_here:
            elsewhere = max(0, elsewhere - 1)  # our own connection that stands in the queue for all of them
        holders.append(
            Holder(
                key=ticket.key.text if ticket is not None else text_of(row.key),
                owner=describe(ticket) if ticket is not None else row.application,
                pid=row.pid,
                host=row.host,
                since=ticket.since if ticket is not None else None,
                note=ticket.note if ticket is not None else None,
                fence=ticket.fence if ticket is not None else None,
                waiting=elsewhere + waiting_here,
                here=ticket is not None,
            )
        )
    return holders


def text_of(key: PgKey) -> str:
    """What is known of a key that only the server named."""
    return f"ns:{key.classid}:{key.objid}" if key.classid is not None else f"hashed:{key.objid}"


def _signed(number: int, bits: int) -> int:
    return number - (1 << bits) if number >= 1 << (bits - 1) else number
