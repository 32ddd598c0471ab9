"""``GET /metrics``, for Prometheus: what the database shows, and what has happened in the processes of this server.

A token sees figures of its own tenant. Those that belong to none (of the scheduler, of Python, requests without a
token) are for the scope admin. Labels are routes, outcomes and tenants, of which there are as many as tokens were
made for: nothing that a client sends becomes one.
"""

from __future__ import annotations

import asyncio
import fcntl
import glob
import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from fastapi import APIRouter, HTTPException, Request, Response
from prometheus_client import (
    CONTENT_TYPE_LATEST,
    REGISTRY,
    CollectorRegistry,
    Counter,
    Histogram,
    generate_latest,
    multiprocess,
)
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from ..agents.database import is_unavailable
from ..agents.view import Figures
from ..errors import BackendUnavailable
from .requests import REFUSALS, granted, service_of
from .tokens import ADMIN, READ

router = APIRouter()

_TENANT: Final = "tenant"
_FOLDER: Final = "PROMETHEUS_MULTIPROC_DIR"
_PREFIX: Final = "holdfast-metrics-"
_NEW_SECONDS: Final = 60.0
_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0)

hook_requests: Final = Counter(
    "holdfast_hook_requests_total",
    "Hook requests: processed, duplicate, stored (202), refused (4xx), unavailable (503), failed (500)",
    [_TENANT, "route", "outcome"],
)
hook_duration: Final = Histogram(
    "holdfast_hook_duration_seconds", "Time until a hook was answered", [_TENANT, "route"], buckets=_BUCKETS
)
lock_wait: Final = Histogram(
    "holdfast_agent_lock_wait_seconds",
    "Time a hook waited for its agent's lock, got or not",
    [_TENANT],
    buckets=_BUCKETS,
)


class CountedHook:
    """Counts one request of a hook route. Whoever has found out sets ``tenant`` and ``outcome``."""

    def __init__(self, route: str) -> None:
        self._route = route
        self.tenant = ""
        self.outcome = "processed"

    def __enter__(self) -> Self:
        self._began = time.perf_counter()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        outcome = self.outcome if error is None else _outcome(error)
        hook_requests.labels(self.tenant, self._route, outcome).inc()
        hook_duration.labels(self.tenant, self._route).observe(time.perf_counter() - self._began)


def _outcome(error: BaseException) -> str:
    if isinstance(error, HTTPException):
        return "refused"
    return "unavailable" if isinstance(error, BackendUnavailable) or is_unavailable(error) else "failed"


@contextmanager
def shared_by_processes() -> Iterator[None]:
    """Has processes that are started in this block keep their figures where each can add them up."""
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as folder, _in_use(folder):
        _sweep(Path(folder).parent)
        os.environ[_FOLDER] = folder
        try:
            yield
        finally:
            del os.environ[_FOLDER]


@contextmanager
def _in_use(folder: str | Path) -> Iterator[None]:
    """Raises ``BlockingIOError`` if the folder is another process's, which lives."""
    at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(at, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    finally:
        os.close(at)


def _sweep(parent: Path) -> None:
    """Removes what servers that were killed have left."""
    for folder in parent.glob(f"{_PREFIX}*"):
        try:
            # A new one is not locked in its first moment.
            if folder.stat().st_uid == os.geteuid() and time.time() - folder.stat().st_mtime > _NEW_SECONDS:
                with _in_use(folder):
                    shutil.rmtree(folder)
        except OSError:
            pass  # in use, or another sweeps


def process_has_died(pid: int) -> None:
    """What it counted stays; what only held while it lived goes."""
    multiprocess.mark_process_dead(pid)  # type: ignore[no-untyped-call]


@router.get(
    "/metrics", response_class=Response, openapi_extra={"security": [{"bearer": []}]},
    responses=REFUSALS | {200: {"description": "Prometheus text.", "content": {"text/plain": {}}}},
)  # fmt: skip
async def metrics(request: Request) -> Response:
    """Figures of the token's tenant; with scope admin, also those of the processes that belong to none."""
    grant = await granted(request, READ)
    figures = await service_of(request).view.figures(grant.tenant)
    text = await asyncio.to_thread(_exposed, grant.tenant, ADMIN in grant.scopes, figures)
    return Response(text, media_type=CONTENT_TYPE_LATEST)


def _exposed(tenant: str, processes_too: bool, figures: Figures) -> bytes:
    counted = _of_all_processes(os.environ[_FOLDER]) if _FOLDER in os.environ else REGISTRY.collect()
    shown = CollectorRegistry(auto_describe=False)
    shown.register(_Families(_of_tenant(counted, tenant, processes_too)))
    shown.register(_Families(_gauges(tenant, figures)))
    return generate_latest(shown)


def _of_all_processes(folder: str) -> Iterable[Metric]:
    """A file that is still empty is left out: a process is about to begin it, and cannot have counted anything."""
    files = [path for path in glob.glob(f"{glob.escape(folder)}/*.db") if not _is_empty(path)]
    added_up: Iterable[Metric] = multiprocess.MultiProcessCollector.merge(files)  # type: ignore[no-untyped-call]
    return added_up


def _is_empty(path: str) -> bool:
    try:
        return not os.path.getsize(path)
    except FileNotFoundError:  # of a process that has just died
        return True


class _Families(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def _of_tenant(families: Iterable[Metric], tenant: str, processes_too: bool) -> Iterator[Metric]:
    for family in families:
        kept = [
            sample
            for sample in family.samples
            if (whose := sample.labels.get(_TENANT, "")) == tenant or (not whose and processes_too)
        ]
        if kept:
            shown = Metric(family.name, family.documentation, family.type, family.unit)
            shown.samples = kept
            yield shown


def _gauges(tenant: str, figures: Figures) -> Iterator[Metric]:
    agents = GaugeMetricFamily("holdfast_agents", "Agents by state", labels=[_TENANT, "state"])
    for state, count in figures.agents.items():
        agents.add_metric([tenant, state], count)
    yield agents
    for name, about, value in (
        ("inbox_events", "Events that wait for being worked off", figures.pending),
        ("inbox_oldest_seconds", "Age of the oldest of them", figures.oldest_seconds),
        ("inbox_set_aside_events", "Events that failed for good", figures.set_aside),
        ("outbox_messages", "Messages that wait for being delivered", figures.messages_waiting),
        ("outbox_set_aside_messages", "Messages that nobody took", figures.messages_set_aside),
    ):
        gauge = GaugeMetricFamily(f"holdfast_{name}", about, labels=[_TENANT])
        gauge.add_metric([tenant], value)
        yield gauge
