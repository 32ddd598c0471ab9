"""The durable inbox: every event is here before it is answered, with its number in the order of arrival."""

from __future__ import annotations

from datetime import timedelta
from typing import Final, NamedTuple

from sqlalchemy import func, select, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession

from .payload import Report, storable
from .tables import Event

MOST_FAILURES: Final = 5
FIRST_PAUSE: Final = timedelta(milliseconds=100)
"""After the first failure; each further one doubles it."""

_STORE: Final = text(
    "select event_id, agent_id, number, duplicate from holdfast.store_event("
    ":tenant, :session_id, :name, cast(:payload as json), :identity, :delivery_id, :digest, :late)"
)


class Stored(NamedTuple):
    event_id: int
    agent_id: int
    number: int
    duplicate: bool


async def store(connection: AsyncConnection, tenant: str, report: Report) -> Stored:
    """Stores an event, or finds the one that it repeats. Durable when the connection's transaction is."""
    row = await connection.execute(
        _STORE,
        {
            "tenant": tenant,
            "session_id": report.session_id,
            "name": report.name,
            "payload": report.text,
            "identity": report.identity,
            "delivery_id": report.delivery_id,
            "digest": report.digest,
            "late": report.late,
        },
    )
    return Stored(*row.one())


async def next_pending(db: AsyncSession, agent_id: int, up_to: int | None) -> Event | None:
    """The first event that is not done. Whoever asks has the agent's ledger open, and so is alone with it."""
    pending = select(Event).where(Event.agent_id == agent_id, Event.status == "pending").order_by(Event.number).limit(1)
    if up_to is not None:
        pending = pending.where(Event.number <= up_to)
    return (await db.execute(pending)).scalar_one_or_none()


def mark_done(event: Event, effect: str) -> None:
    event.status = "done"
    event.effect = effect
    event.processed_at = func.clock_timestamp()
    event.processed_in = func.txid_current()
    event.retry_at = None


def mark_failed(event: Event, error: Exception) -> None:
    """Counts a failure of the event's own. After the last one it is set aside, so that the next can go on."""
    event.failures += 1
    event.error = (storable(f"{type(error).__name__}: {error}") or "")[:2000]
    if event.failures >= MOST_FAILURES:
        event.status = "set_aside"
        event.processed_at = func.clock_timestamp()
        event.processed_in = func.txid_current()
        event.retry_at = None
    else:
        event.retry_at = func.clock_timestamp() + FIRST_PAUSE * 2 ** (event.failures - 1)
