"""The ASGI application: its parts put together, and its life from the first request to the last."""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import signal
import sys
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from types import FrameType

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from sqlalchemy.exc import SQLAlchemyError
from uvicorn.config import STARTUP_FAILURE

from .. import __version__
from ..agents.database import is_unavailable
from ..embedded._prctl import die_with_parent
from ..errors import BackendUnavailable
from . import api, health, hooks, logs, metrics, page, place, scheduled
from .guard import Guard
from .linger import Lingering
from .service import Service
from .settings import Settings, load

_log = logging.getLogger("holdfast.server")


def from_environment() -> FastAPI:
    """For uvicorn's workers, each of which is a process that was told nothing."""
    logs.configure()
    parent = multiprocessing.parent_process()
    if parent is not None and parent.pid is not None:  # not getppid(): it may be dead already
        die_with_parent(signal.SIGTERM, parent.pid)
    try:
        return create_app(load())
    except Exception:
        # By any other code it would be taken for one that died, and be replaced again and again.
        _log.exception("the application could not be made", extra={"action": "worker_failed"})
        sys.exit(STARTUP_FAILURE)


def create_app(settings: Settings) -> FastAPI:
    app = FastAPI(
        title="Holdfast", version=__version__, lifespan=_lifespan, docs_url=None, redoc_url=None,
        openapi_url="/openapi.json", separate_input_output_schemas=False,
    )  # fmt: skip
    app.state.settings = settings
    for part in (hooks, api, page, health, metrics):
        app.include_router(part.router)
    own_name = [] if settings.host in ("0.0.0.0", "::", "") else [settings.host]
    app.add_middleware(Guard, hosts=[*own_name, *settings.allowed_hosts])
    app.add_middleware(Lingering)  # around all that may refuse
    app.add_exception_handler(BackendUnavailable, _unavailable)
    app.add_exception_handler(SQLAlchemyError, _unavailable)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    settings: Settings = app.state.settings
    with place.database(settings) as url:
        service = app.state.service = Service(settings, url)
        try:
            await service.start()
            scheduled.mount(app, service.scheduler)
            with _hearing_of_the_end(service):
                yield
        finally:
            await service.close()


@contextmanager
def _hearing_of_the_end(service: Service) -> Iterator[None]:
    """uvicorn tells the application when all requests are answered; those that wait must know before."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

    def handle(number: int, frame: FrameType | None) -> None:
        loop.call_soon_threadsafe(service.prepare_to_end)
        before = handlers[signal.Signals(number)]
        if callable(before):
            before(number, frame)

    for number in handlers:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number, before in handlers.items():
            if before is not None:  # None: not Python's, and so not to be had back
                signal.signal(number, before)


async def _unavailable(request: Request, error: Exception) -> JSONResponse:
    if not isinstance(error, BackendUnavailable) and not is_unavailable(error):
        raise error
    _log.error("unavailable: %s", type(error).__name__, extra={"action": "unavailable", "path": request.url.path})
    return JSONResponse({"detail": "the database cannot be used"}, 503, {"Retry-After": "1"})
