"""``/scheduled-actions``, as a router that any FastAPI application can include.

::

    scheduler = get_scheduler(async_db=url)

    @asynccontextmanager
    async def lifespan(app):
        async with scheduler:  # starts it; drains it at the end
            yield

    app = FastAPI(lifespan=lifespan)
    app.include_router(create_router(scheduler))

It checks no credentials: whoever may create actions can have any task called. Put the application's own in front.
"""

from collections.abc import Callable, Coroutine, Sequence
from datetime import datetime
from typing import Annotated, Any, Final

from ..errors import BackendUnavailable, MissingExtra
from .actions import Misfire, Recovery, ScheduledAction, ScheduledRun, ScheduleType, Status
from .agenda import Agenda, NoSuchAction, NotNow
from .checks import InvalidField

try:
    from fastapi import APIRouter, Body, HTTPException, Path, Query, Request, Response
    from fastapi.routing import APIRoute
    from pydantic import BaseModel, ConfigDict
except ImportError:
    raise MissingExtra("the scheduler's API needs fastapi: pip install fastapi") from None

_Id = Annotated[int, Path(ge=1, le=2**31 - 1)]
_Limit = Annotated[int, Query(ge=1, le=1000)]
_RunId = Annotated[int | None, Query(ge=1, le=2**63 - 1)]


class _Fields(BaseModel):
    """Fields that are left out keep their defaults, or what they were."""

    model_config = ConfigDict(extra="forbid")

    name: str = ""
    action_config: dict[str, Any] = {}
    schedule_type: ScheduleType = "event"
    cron_expression: str | None = None
    timezone: str = "UTC"
    interval_seconds: float | None = None
    run_at: datetime | None = None
    event: str | None = None
    start_at: datetime | None = None
    end_at: datetime | None = None
    max_executions: int | None = None
    allow_concurrent: bool = False
    misfire: Misfire | None = None
    misfire_limit: int = 10
    misfire_grace_seconds: float = 60.0
    jitter_seconds: float = 0.0
    timeout_seconds: float | None = None
    max_retries: int = 0
    retry_delay_seconds: float = 10.0
    recovery: Recovery = "at_most_once"


class NewAction(_Fields):
    action_type: str
    status: Status = "active"


class ActionChanges(_Fields):
    action_type: str = ""


class _Route(APIRoute):
    """What the scheduler raises, as HTTP says it."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_and_translate(request: Request) -> Response:
            try:
                return await handle(request)
            except InvalidField as error:
                problem = {"type": "value_error", "loc": ["body", error.field], "msg": str(error)}
                raise HTTPException(422, [problem]) from None
            except NoSuchAction as error:
                raise HTTPException(404, str(error)) from None
            except NotNow as error:
                raise HTTPException(409, str(error)) from None
            except BackendUnavailable as error:
                raise HTTPException(503, str(error)) from None

        return handle_and_translate


PREFIX: Final = "/scheduled-actions"


def create_router(scheduler: Agenda, prefix: str = PREFIX) -> APIRouter:
    router = APIRouter(prefix=prefix, tags=["scheduled actions"], route_class=_Route)

    @router.get("")
    async def list_actions(after: int = 0, limit: _Limit = 100, status: Status | None = None) -> list[ScheduledAction]:
        """In the order of their ids; go on with ``after=`` the last one's."""
        return list(await scheduler.actions(after=max(0, min(after, 2**31 - 1)), limit=limit, status=status))

    @router.post("", status_code=201)
    async def create(new: NewAction) -> ScheduledAction:
        return await scheduler.add(ScheduledAction(**new.model_dump()))

    @router.get("/{action_id}")
    async def get(action_id: _Id) -> ScheduledAction:
        return await scheduler.get(action_id)

    @router.patch("/{action_id}")
    async def change(action_id: _Id, changes: ActionChanges) -> ScheduledAction:
        return await scheduler.update(action_id, **changes.model_dump(exclude_unset=True))

    @router.delete("/{action_id}", status_code=204)
    async def delete(action_id: _Id) -> None:
        """With its runs. One that is under way is told that it has lost its claim."""
        await scheduler.remove(action_id)

    @router.post("/{action_id}/pause")
    async def pause(action_id: _Id) -> ScheduledAction:
        return await scheduler.pause(action_id)

    @router.post("/{action_id}/resume")
    async def resume(action_id: _Id) -> ScheduledAction:
        return await scheduler.resume(action_id)

    @router.post("/{action_id}/trigger", status_code=202)
    async def trigger(action_id: _Id, payload: Annotated[Any, Body(embed=True)] = None) -> ScheduledRun:
        """409 if the last run has not ended and the action does not allow two."""
        run = await scheduler.trigger(action_id, payload)
        if run.state.final:
            raise HTTPException(409, f"{run.error} (recorded as run {run.id})")
        return run

    @router.get("/{action_id}/runs")
    async def runs(action_id: _Id, before: _RunId = None, limit: _Limit = 100) -> Sequence[ScheduledRun]:
        """The newest first; go on with ``before=`` the last one's id."""
        return await scheduler.runs(action_id, before=before, limit=limit)

    return router
