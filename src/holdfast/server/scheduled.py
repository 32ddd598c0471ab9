"""``/scheduled-actions``, for tokens with the scope admin: whoever may create actions can have any task called.

Every worker has a scheduler of its own; each occurrence is claimed by one of them.
"""

from __future__ import annotations

from fastapi import Depends, FastAPI, HTTPException, Request

from ..scheduler import Scheduler
from ..scheduler.api import create_router
from .requests import granted
from .tokens import ADMIN


def mount(app: FastAPI, scheduler: Scheduler) -> None:
    app.include_router(create_router(scheduler), dependencies=[Depends(_may)])


async def _may(request: Request) -> None:
    await granted(request, ADMIN)
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if int(request.headers.get("content-length") or 0) and kind != "application/json":
        raise HTTPException(415, "Content-Type: application/json is all that is taken")
