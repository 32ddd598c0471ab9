"""What routes ask of a request: who it is from, and its body, bounded."""

from __future__ import annotations

import asyncio
from typing import Any, Final

from fastapi import HTTPException, Request
from starlette.requests import ClientDisconnect

from .service import Service
from .tokens import ADMIN, Grant

COOKIE: Final = "holdfast"
BODY_SECONDS: Final = 10.0
REFUSALS: Final[dict[int | str, dict[str, Any]]] = {
    401: {"description": "No token, or an unknown one."},
    403: {"description": "A foreign Host or Origin, or a token for something else."},
    503: {"description": "The database cannot be asked."},
}
"""Of routes that only show something, for their description."""


def service_of(request: Request) -> Service:
    service: Service = request.app.state.service
    return service


async def granted(request: Request, scope: str) -> Grant:
    """Who calls, if they may; else 401 or 403."""
    token = _token(request)
    grant = await service_of(request).tokens.grant(token) if token else None
    if grant is None:
        raise HTTPException(401, "a token is needed: Authorization: Bearer …", {"WWW-Authenticate": "Bearer"})
    if scope not in grant.scopes and ADMIN not in grant.scopes:
        raise HTTPException(403, f"this token is not for that: it lacks the scope {scope}")
    return grant


def _token(request: Request) -> str | None:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        return token.strip()
    # A browser's; SameSite=Strict, and good for reading only.
    return request.cookies.get(COOKIE)


async def json_body(request: Request) -> bytes:
    """The body, which must say that it is JSON: a browser asks first before it sends that to another site."""
    kind, _, parameters = request.headers.get("content-type", "").partition(";")
    if kind.strip().lower() != "application/json":
        raise HTTPException(415, "Content-Type: application/json is all that is taken")
    charset = parameters.strip().lower().replace('"', "")
    if charset not in ("", "charset=utf-8"):
        raise HTTPException(415, "Content-Type: only UTF-8 is taken")
    most = service_of(request).settings.max_body
    if int(request.headers.get("content-length") or 0) > most:
        raise _too_large(most)
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for chunk in request.stream():
                body += chunk
                if len(body) > most:
                    raise _too_large(most)
    except ClientDisconnect:
        raise HTTPException(400, "the body ended early") from None  # nobody will read this
    except TimeoutError:
        raise HTTPException(408, "the body did not arrive in time") from None
    return bytes(body)


def _too_large(most: int) -> HTTPException:
    return HTTPException(413, f"the body is larger than {most} bytes")
