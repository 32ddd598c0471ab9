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

from collections.abc import Callable, Collection, Coroutine, Sequence
from dataclasses import MISSING, fields
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias, get_type_hints

from ..errors import BackendUnavailable, MissingExtra
from .actions import CHANGEABLE, GIVEN_FIELDS, ScheduledAction, ScheduledRun, Status
from .agenda import Agenda, NoSuchAction, NotNow
from .checks import InvalidField

try:
    from fastapi import APIRouter, Body, HTTPException, Path, Query, Request, Response
    from fastapi.exceptions import RequestValidationError
    from fastapi.routing import APIRoute
    from pydantic import BaseModel, Field, TypeAdapter, create_model
except ImportError:
    raise MissingExtra("the scheduler's API needs fastapi: pip install fastapi") from None

_Id = Annotated[int, Path(ge=1, le=2**31 - 1)]
_Event = Annotated[str, Path(min_length=1, max_length=200)]
_Payload = Annotated[Any, Body(embed=True)]
_Limit = Annotated[int, Query(ge=1, le=1000)]
_RunId = Annotated[int | None, Query(ge=1, le=2**63 - 1)]


def _given(names: Collection[str], *, all_optional: bool = False) -> dict[str, Any]:
    """These fields of a ``ScheduledAction``, as it describes them: type, default, and what is said about each."""
    types, described = get_type_hints(ScheduledAction), TypeAdapter(ScheduledAction).json_schema()["properties"]
    given: dict[str, Any] = {}
    for field in fields(ScheduledAction):
        default: Any = ... if field.default is MISSING else field.default
        if field.default_factory is not MISSING:
            default = field.default_factory()
        if field.name in names:
            about = described[field.name].get("description")
            given[field.name] = (types[field.name], Field(None if all_optional else default, description=about))
    return given


def _without_defaults(schema: dict[str, Any]) -> None:
    """What is left out of a change stays as it was: it does not become the default."""
    for field in schema["properties"].values():
        field.pop("default", None)


if TYPE_CHECKING:
    NewAction: TypeAlias = BaseModel
    ActionChanges: TypeAlias = BaseModel
else:
    NewAction = create_model(
        "NewAction",
        __config__={"extra": "forbid"},
        **_given(GIVEN_FIELDS),
    )
    ActionChanges = create_model(
        "ActionChanges",
        __config__={"extra": "forbid", "json_schema_extra": _without_defaults},
        **_given(CHANGEABLE, all_optional=True),
    )


class Route(APIRoute):
    """What the scheduler raises, as HTTP says it."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_and_translate(request: Request) -> Response:
            try:
                return await handle(request)
            except RequestValidationError as error:
                # Without what was sent: an answer cannot hold all that a request can (NaN, half of a surrogate pair).
                told = [{name: each[name] for name in ("type", "loc", "msg")} for each in error.errors()]
                raise RequestValidationError(told) from None
            except InvalidField as error:
                place = "path" if error.field in request.path_params else "body"
                problem = {"type": "value_error", "loc": [place, error.field], "msg": str(error)}
                raise HTTPException(422, [problem]) from None
            except NoSuchAction as error:
                raise HTTPException(404, str(error)) from None
            except NotNow as error:
                raise HTTPException(409, str(error)) from None
            except BackendUnavailable as error:
                raise HTTPException(503, str(error)) from None

        return handle_and_translate


PREFIX: Final = "/scheduled-actions"


def create_router(scheduler: Agenda, prefix: str = PREFIX, *, route_class: type[Route] = Route) -> APIRouter:
    """``route_class``: one that also sees to what must be seen to before a request's body is read."""
    router = APIRouter(prefix=prefix, tags=["scheduled actions"], route_class=route_class)

    @router.get("")
    async def list_actions(after: int = 0, limit: _Limit = 100, status: Status | None = None) -> list[ScheduledAction]:
        """In the order of their ids; go on with ``after=`` the last one's."""
        return list(await scheduler.actions(after=max(0, min(after, 2**31 - 1)), limit=limit, status=status))

    @router.post("", status_code=201)
    async def create(new: NewAction) -> ScheduledAction:
        return await scheduler.add(ScheduledAction(**new.model_dump()))

    @router.post("/events/{event:path}", status_code=202)  # before those of an id, of which events is none
    async def fire(event: _Event, payload: _Payload = None) -> Sequence[ScheduledRun]:
        """A run of every active action that waits for this event, by whichever instance takes it up.

        ``skipped`` if an action's last run has not ended and it does not allow two; none if nothing waits for it.
        """
        return await scheduler.fire(event, payload)

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
    async def trigger(action_id: _Id, payload: _Payload = None) -> ScheduledRun:
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
