"""The page at ``/``: agents by state, live. A browser is let in once by a code, and has a cookie from then on."""

from __future__ import annotations

from importlib.resources import files
from typing import Final

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from sqlalchemy import text

from ..hooks.token_file import new_token
from .requests import COOKIE, granted, service_of
from .tokens import READ, digest

router = APIRouter(include_in_schema=False)

COOKIE_SECONDS: Final = 30 * 24 * 3600

_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
_ASSETS: Final = {"page.js": "text/javascript", "page.css": "text/css"}

# The code is gone with its first use, whoever comes second.
_EXCHANGE: Final = text("""
    with code as (delete from holdfast.token
        where digest = :code and 'page' = any (scopes) and expires_at > now() and revoked_at is null returning tenant)
    insert into holdfast.token (digest, tenant, scopes, note, expires_at)
    select :cookie, tenant, '{read}', 'a browser', now() + make_interval(secs => :seconds) from code returning 1
""")


@router.get("/")
async def page(request: Request, code: str | None = None) -> Response:
    if code is not None:
        return await _let_in(request, code)
    try:
        await granted(request, READ)
    except HTTPException as error:
        return HTMLResponse(_asset("locked.html"), error.status_code, _HEADERS)
    return HTMLResponse(_asset("page.html"), headers=_HEADERS)


@router.get("/assets/{name}")
async def asset(name: str) -> Response:
    if name not in _ASSETS:
        raise HTTPException(404, "there is no such file")
    return Response(_asset(name), media_type=_ASSETS[name], headers=_HEADERS)


async def _let_in(request: Request, code: str) -> Response:
    cookie = new_token()
    values = {"code": digest(code), "cookie": digest(cookie), "seconds": float(COOKIE_SECONDS)}
    async with service_of(request).database.statement() as connection:
        taken = (await connection.execute(_EXCHANGE, values)).scalar()
    if taken is None:
        return HTMLResponse(_asset("locked.html"), 401, _HEADERS)
    answer = RedirectResponse("/", 303, _HEADERS)  # so that the code is not in the address any more
    answer.set_cookie(COOKIE, cookie, max_age=COOKIE_SECONDS, httponly=True, samesite="strict", path="/")
    return answer


def _asset(name: str) -> str:
    return (files(__package__) / "assets" / name).read_text(encoding="utf-8")
