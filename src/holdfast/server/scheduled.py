"""``/scheduled-actions``, for tokens with the scope admin: whoever may create actions can have any task called.

Every worker has a scheduler of its own; each occurrence is claimed by one of them.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import FastAPI, Request, Response
from starlette.types import Message

from ..scheduler import Scheduler
from ..scheduler.api import Route, create_router
from .requests import granted, json_body
from .tokens import ADMIN


def mount(app: FastAPI, scheduler: Scheduler) -> None:
    app.include_router(create_router(scheduler, route_class=_GuardedRoute))


class _GuardedRoute(Route):
    """Not by a dependency: before it asks the first of those, FastAPI has read the body, whosever and however large."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def guard_and_handle(request: Request) -> Response:
            await granted(request, ADMIN)
            return await handle(await _with_body(request) if _has_body(request) else request)

        return guard_and_handle


def _has_body(request: Request) -> bool:
    return "transfer-encoding" in request.headers or request.headers.get("content-length", "0") != "0"


async def _with_body(request: Request) -> Request:
    """The request with its body read already, within bounds."""
    body = await json_body(request)

    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    return Request(request.scope, receive)
