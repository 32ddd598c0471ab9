"""``/api/…``: agents and what changes, for people and their programs; and who holds which advisory lock."""

from __future__ import annotations

from typing import Annotated, Any, Final

from fastapi import APIRouter, Header, HTTPException, Path, Query, Request
from sqlalchemy import text
from starlette.responses import Response

from ..agents.view import Position
from .requests import REFUSALS, granted, service_of
from .stream import ChangeStream
from .tokens import ADMIN, READ

router = APIRouter(prefix="/api")

_Id = Annotated[int, Path(ge=1, le=2**63 - 1)]
_Most = Annotated[int, Query(ge=1, le=500)]
_Before = Annotated[int | None, Query(ge=1, le=2**63 - 1)]

_SECURED: Final[dict[str, Any]] = {"security": [{"bearer": []}]}

# Ids are unsigned in pg_locks, and were signed when they were asked for. A key of one bigint lies in both columns.
_LOCKS: Final = text("""
    select l.pid, a.application_name, a.state, a.query_start, l.mode, l.granted,
        case when l.objsubid = 2 then l.classid::bigint::bit(32)::int end as namespace,
        case when l.objsubid = 2 then l.objid::bigint::bit(32)::int
            else (l.classid::bigint << 32) | l.objid::bigint end as entity_id,
        extract(epoch from clock_timestamp() - a.query_start)::float8 as duration
    from pg_locks l left join pg_stat_activity a on a.pid = l.pid
    where l.locktype = 'advisory' and l.database = (select oid from pg_database where datname = current_database())
    order by l.granted desc, namespace nulls last, entity_id, l.pid
""")


@router.get("/agents", responses=REFUSALS, openapi_extra=_SECURED)
async def agents(request: Request, before: _Before = None, most: _Most = 100) -> dict[str, Any]:
    """Agents, the newest first, ended ones too. ``before``: those with lower ids."""
    grant = await granted(request, READ)
    return {"agents": await service_of(request).view.agents(grant.tenant, before=before, most=most)}


@router.get("/agents/{id}", responses=REFUSALS | {404: {"description": "There is none."}}, openapi_extra=_SECURED)
async def agent(request: Request, id: _Id, most: _Most = 200) -> dict[str, Any]:
    """One agent with its last turns and events."""
    grant = await granted(request, READ)
    found = await service_of(request).view.agent(grant.tenant, id, most=most)
    if found is None:
        raise HTTPException(404, "there is no such agent")
    return found


@router.get("/events", responses=REFUSALS, openapi_extra=_SECURED, response_class=Response)
async def events(request: Request, last_event_id: Annotated[str | None, Header()] = None) -> Response:
    """What changes, as server-sent events; goes on where ``Last-Event-ID`` says."""
    grant = await granted(request, READ)
    service = service_of(request)
    try:
        after = Position.parse(last_event_id) if last_event_id else await service.view.now()
    except ValueError as error:
        raise HTTPException(
            422, [{"type": "malformed", "loc": ["header", "Last-Event-ID"], "msg": str(error)}]
        ) from None
    if service.streams >= service.MOST_STREAMS:
        raise HTTPException(503, "too many follow along already", {"Retry-After": "5"})
    return ChangeStream(service, grant.tenant, after, lambda: granted(request, READ))


@router.get("/advisory-locks", responses=REFUSALS, openapi_extra=_SECURED)
async def advisory_locks(request: Request) -> dict[str, Any]:
    """Every advisory lock of this database, held or waited for. ``namespace`` is null for a key of one bigint."""
    await granted(request, ADMIN)
    async with service_of(request).database.statement() as connection:
        locks = [dict(row) for row in (await connection.execute(_LOCKS)).mappings()]
    return {"locks": locks, "total": len(locks)}
