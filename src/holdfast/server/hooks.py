"""The hook routes: one for each event that changes an agent, ``/hook`` for any, and ``/hook/status``.

To the client a JSON body is a decision and text an error. So whatever went well has no body; the header
``Holdfast-Outcome`` says what happened.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from fastapi import APIRouter, HTTPException, Request, Response

from ..agents import payload
from ..agents.reception import Outcome, Receipt
from ..hooks import entries
from .metrics import CountedHook, lock_wait
from .requests import granted, json_body, service_of
from .tokens import HOOK, READ, Grant

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
    with CountedHook(entries.ROUTES[event] if event else "any") as count:
        grant = await granted(request, HOOK)
        count.tenant = grant.tenant
        receipt = await _taken(request, grant, event)
        count.outcome = receipt.outcome
    headers = {"Holdfast-Outcome": receipt.outcome, "Holdfast-Event": str(receipt.stored.number)}
    return Response(status_code=202 if receipt.outcome is Outcome.STORED else 200, headers=headers)


async def _taken(request: Request, grant: Grant, event: str | None) -> Receipt:
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
    waited = lock_wait.labels(grant.tenant).observe
    return await service_of(request).reception.take(grant.tenant, report, waited=waited)


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
    figures = await service_of(request).view.figures(grant.tenant)
    return {
        "agents": sum(count for state, count in figures.agents.items() if state != "ENDED"),
        "pending": figures.pending,
        "set_aside": figures.set_aside,
        "messages_waiting": figures.messages_waiting,
        "messages_set_aside": figures.messages_set_aside,
    }
