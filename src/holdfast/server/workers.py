"""The processes that a server consists of: one, or several that are watched and replaced when they die."""

from __future__ import annotations

import logging
import signal
import socket
from contextlib import suppress
from types import FrameType
from typing import Final

import uvicorn
from uvicorn.supervisors import Multiprocess

from . import metrics

_log = logging.getLogger("holdfast.server")

_APPLICATION: Final = "holdfast.server.app:from_environment"
GRACE: Final = 20
"""Seconds for requests that are under way when the server is told to stop."""


def run(workers: int, listener: socket.socket) -> bool:
    """Runs until it is told to stop. Returns whether it was: else it could not start."""
    config = uvicorn.Config(
        _APPLICATION, factory=True, workers=workers, log_config=None, access_log=False, server_header=False,
        loop="asyncio", timeout_graceful_shutdown=GRACE, timeout_keep_alive=30,
    )  # fmt: skip
    return _run_alone(config, listener) if workers == 1 else _run_several(config, listener)


def _run_alone(config: uvicorn.Config, listener: socket.socket) -> bool:
    server = uvicorn.Server(config)
    told = False

    def heard(number: int, frame: FrameType | None) -> None:
        # uvicorn ends a process by the signal that it got. To be told to stop and to have stopped is no failure.
        nonlocal told
        told = True

    before = {number: signal.signal(number, heard) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        with suppress(SystemExit):  # if it cannot start
            server.run(sockets=[listener])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return told


def _run_several(config: uvicorn.Config, listener: socket.socket) -> bool:
    with metrics.shared_by_processes():
        supervisor = _Supervisor(config, sockets=[listener])
        supervisor.run()
    return supervisor.told_to_stop


class _Supervisor(Multiprocess):
    """uvicorn's, which also gives up if a worker cannot start, but does not say so."""

    told_to_stop = False

    def handle_int(self) -> None:
        self.told_to_stop = True
        super().handle_int()

    def handle_term(self) -> None:
        self.told_to_stop = True
        super().handle_term()

    def keep_subprocess_alive(self) -> None:
        before = [process.pid for process in self.processes]
        super().keep_subprocess_alive()
        for pid in set(before) - {process.pid for process in self.processes}:
            _log.error("a worker died and was replaced", extra={"action": "worker_replaced", "worker": pid})
            if pid is not None:
                metrics.process_has_died(pid)
