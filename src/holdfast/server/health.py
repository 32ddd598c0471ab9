"""``/health…``: whether this process lives, and whether it can do its work. No token, no secrets, no lock."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from fastapi import APIRouter, Request, Response
from sqlalchemy import text

from ..agents.database import is_unavailable
from .requests import service_of

router = APIRouter()

PATIENCE: Final = 2.0

_BACKLOG: Final = text("""
    select count(*) filter (where status = 'pending') as pending,
        count(*) filter (where status = 'set_aside') as set_aside,
        coalesce(extract(epoch from clock_timestamp() - min(received_at) filter (where status = 'pending')), 0)::float8
            as oldest
    from holdfast.event where status in ('pending', 'set_aside')
""")
_OUTBOX: Final = text("""
    select count(*) filter (where status = 'waiting') as waiting,
        count(*) filter (where status = 'set_aside') as set_aside
    from holdfast.outbox where status in ('waiting', 'set_aside')
""")


@router.get("/health/live")
async def live() -> dict[str, str]:
    return {"status": "live"}


@router.get("/health/ready", responses={503: {"description": "Not now."}})
async def ready(request: Request, response: Response) -> dict[str, Any]:
    state = await _state(request)
    if state["status"] != "ok":
        response.status_code = 503
    return {"status": "ready" if state["status"] == "ok" else state["status"]}


@router.get("/health", responses={503: {"description": "Something is wrong; it says what."}})
async def health(request: Request, response: Response) -> dict[str, Any]:
    state = await _state(request)
    if state["status"] != "ok":
        response.status_code = 503
    return state


async def _state(request: Request) -> dict[str, Any]:
    service = service_of(request)
    if service.ending.is_set():
        return {"status": "ending"}
    if not service.drainer.alive:
        return {"status": "the drainer has stopped"}
    if service.outbox is not None and not service.outbox.alive:
        return {"status": "the outbox has stopped"}
    try:
        async with asyncio.timeout(PATIENCE), service.database.statement() as connection:
            row = (await connection.execute(_BACKLOG)).one()
            outbox = (await connection.execute(_OUTBOX)).mappings().one()
    except Exception as error:
        if not is_unavailable(error):
            raise
        return {"status": "the database cannot be used"}
    inbox = {"pending": row.pending, "set_aside": row.set_aside, "oldest_seconds": round(row.oldest, 3)}
    scheduler = service.scheduler.health()
    return {
        "status": "ok",
        "inbox": inbox,
        "outbox": dict(outbox),
        "scheduler": {"healthy": scheduler.healthy, "running": scheduler.running},
    }
