"""The hook routes: one for each event that changes an agent, ``/hook`` for any, and ``/hook/status``.

To the client a JSON body is a decision and text an error. So whatever went well has no body; the header
``Holdfast-Outcome`` says what happened.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from fastapi import APIRouter, HTTPException, Request, Response
from sqlalchemy import text

from ..agents import payload
from ..agents.reception import Outcome
from ..hooks import entries
from .requests import granted, json_body, service_of
from .tokens import HOOK, READ

router = APIRouter()

ROUTES: Final = {route: event for event, route in entries.ROUTES.items()}

_NAME: Final = {"type": "string", "minLength": 1, "maxLength": 100, "pattern": "^[!-~]+$"}
_LONG_NAME: Final = _NAME | {"maxLength": 200}
_PATH: Final = {"type": "string", "maxLength": 4096}


def _described(event: str | None) -> dict[str, Any]:
    fields = {
        "session_id": _LONG_NAME,
        "hook_event_name": {"const": event} if event else _NAME,
        "cwd": _PATH,
        "transcript_path": _PATH,
        "prompt_id": _LONG_NAME,
        "tool_use_id": _LONG_NAME,
    }
    required = ["session_id"] if event else ["session_id", "hook_event_name"]
    schema = {"type": "object", "required": required, "properties": fields, "additionalProperties": True}
    return {
        "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}},
        "security": [{"bearer": []}],
    }


_ANSWERS: Final[dict[int | str, dict[str, Any]]] = {
    200: {"description": "Stored and worked off. No body.", "content": {}},
    202: {"description": "Stored; it is worked off in its place. No body.", "content": {}},
    401: {"description": "No token, or an unknown one."},
    403: {"description": "A foreign Host or Origin, or a token for something else."},
    408: {"description": "The body did not arrive in time."},
    413: {"description": "The body is too large."},
    415: {"description": "Not JSON by its Content-Type."},
    422: {"description": "The payload is malformed; the field is named."},
    503: {"description": "The event could not be stored."},
}


async def _receive(request: Request, event: str | None) -> Response:
    grant = await granted(request, HOOK)
    body = await json_body(request)
    try:
        report = payload.read(
            body,
            event=event,
            delivery_id=request.headers.get("holdfast-delivery"),
            late="holdfast-spooled" in request.headers,
        )
    except payload.Malformed as error:
        where = ["body", error.field] if error.field else ["body"]
        raise HTTPException(422, [{"type": "malformed", "loc": where, "msg": str(error)}]) from None
    receipt = await service_of(request).reception.take(grant.tenant, report)
    headers = {"Holdfast-Outcome": receipt.outcome, "Holdfast-Event": str(receipt.stored.number)}
    return Response(status_code=202 if receipt.outcome is Outcome.STORED else 200, headers=headers)


def _route(event: str) -> Callable[[Request], Awaitable[Response]]:
    async def receive(request: Request) -> Response:
        return await _receive(request, event)

    receive.__name__ = f"receive_{event}"
    return receive


for _path, _event in ROUTES.items():
    router.add_api_route(
        f"/hook/{_path}",
        _route(_event),
        methods=["POST"],
        openapi_extra=_described(_event),
        responses=_ANSWERS,
        response_class=Response,
        summary=f"Takes a {_event}",
    )


@router.post("/hook", openapi_extra=_described(None), responses=_ANSWERS, response_class=Response)
async def receive_any(request: Request) -> Response:
    """Takes any event, known or not, by its ``hook_event_name``."""
    return await _receive(request, None)


_STATUS: Final = text("""
    select (select count(*) from holdfast.agent where tenant = :tenant and ended_at is null) as agents,
        count(*) filter (where e.status = 'pending') as pending,
        count(*) filter (where e.status = 'set_aside') as set_aside,
        (select count(*) from holdfast.outbox o join holdfast.agent a on a.id = o.agent_id
            where o.status = 'waiting' and a.tenant = :tenant) as messages_waiting,
        (select count(*) from holdfast.outbox o join holdfast.agent a on a.id = o.agent_id
            where o.status = 'set_aside' and a.tenant = :tenant) as messages_set_aside
    from holdfast.event e join holdfast.agent a on a.id = e.agent_id
    where e.status in ('pending', 'set_aside') and a.tenant = :tenant
""")


@router.get(
    "/hook/status", openapi_extra={"security": [{"bearer": []}]}, responses={c: _ANSWERS[c] for c in (401, 403, 503)}
)
async def status(request: Request) -> dict[str, int]:
    """How many agents live, and what waits for being worked off or delivered. Takes no lock, and waits for none."""
    try:
        grant = await granted(request, HOOK)
    except HTTPException as error:
        if error.status_code != 403:
            raise
        grant = await granted(request, READ)
    async with service_of(request).database.statement() as connection:
        return dict((await connection.execute(_STATUS, {"tenant": grant.tenant})).mappings().one())
