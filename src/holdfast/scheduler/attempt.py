"""One attempt: the handler is called, and whatever it does, it ends as something that can be recorded."""

from __future__ import annotations

import asyncio
import inspect
import json
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from .actions import RunState
from .checks import nested_too_deeply
from .execution import Execution
from .store import Attempt, Ending

Handler = Callable[[Execution], Any]
"""Given an ``Execution``; async, or sync and then called in a thread. What it returns is recorded."""

_RESULT_BYTES: Final = 64 * 1024
_ERROR_CHARACTERS: Final = 4_000


async def make_attempt(execution: Execution, handler: Handler | None) -> Ending | None:
    """How the attempt ended; None if its claim was lost in it, and there is nothing for us to say."""
    begun = time.monotonic()
    state, error, result = await _outcome(execution, handler)
    if state == RunState.CANCELLED and execution.lost:
        return None
    action, run = execution.action, execution.run
    # Attempts that ended with their instance do not count as failures of the action.
    failures = run.attempt - run.recoveries
    retry = state in (RunState.FAILED, RunState.TIMEOUT) and failures <= action.max_retries and handler is not None
    return Ending(
        of=Attempt(run.id, run.attempt),
        state=state,
        duration=time.monotonic() - begun,
        error=None if error is None else _plain(error)[:_ERROR_CHARACTERS],
        result=_recordable(result),
        retry_in=action.retry_delay_seconds if retry else None,
        handed_back=state == RunState.CANCELLED and action.recovery == "at_least_once",
    )


async def _outcome(execution: Execution, handler: Handler | None) -> tuple[RunState, str | None, Any]:
    if handler is None:
        return RunState.FAILED, f"action_type {execution.action.action_type!r}: no dispatcher of this name here", None
    limit = execution.action.timeout_seconds
    try:
        async with asyncio.timeout(limit) as timer:
            result = await _call(handler, execution)
    except TimeoutError as error:
        if not timer.expired():
            return RunState.FAILED, _describe(error), None
        return _timed_out(limit)
    except asyncio.CancelledError as error:
        if not execution.stopping:  # nobody asked for it: something that it waited for was cancelled
            return RunState.FAILED, _describe(error), None
        return RunState.CANCELLED, "the instance was shut down in the middle of it", None
    except (Exception, SystemExit) as error:  # SystemExit would end the loop, and all other runs with it
        return _timed_out(limit) if timer.expired() else (RunState.FAILED, _describe(error), None)
    if timer.expired():  # it took no notice and came to an end by itself, too late
        return _timed_out(limit)
    problem = problem_in(result)
    return (RunState.FAILED, problem, result) if problem else (RunState.COMPLETED, None, result)


async def _call(handler: Handler, execution: Execution) -> Any:
    if inspect.iscoroutinefunction(handler) or inspect.iscoroutinefunction(getattr(handler, "__call__", None)):  # noqa: B004
        return await handler(execution)
    outcome = await execution.in_thread(handler, execution)
    return await outcome if inspect.isawaitable(outcome) else outcome


def _timed_out(limit: float | None) -> tuple[RunState, str, None]:
    return RunState.TIMEOUT, f"took longer than its timeout of {limit:g} s", None


def problem_in(result: Any) -> str | None:
    """A handler may return what went wrong instead of raising it."""
    if not isinstance(result, Mapping):
        return None
    if result.get("error"):
        return str(result["error"])
    return "the handler returned success: false" if result.get("success") is False else None


def _describe(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _recordable(result: Any) -> str | None:
    """As JSON that PostgreSQL takes, of bounded size; if that cannot be, what it looks like."""
    if result is None:
        return None
    try:
        written = json.dumps(result, allow_nan=False, ensure_ascii=False)
        size = len(written.encode())
    except (TypeError, ValueError, RecursionError):  # UnicodeError is a ValueError
        return json.dumps({"repr": _looks_like(result)})
    if "\\u0000" in written or nested_too_deeply(result):
        return json.dumps({"repr": _looks_like(result)})
    if size > _RESULT_BYTES:
        return json.dumps({"truncated": written[: _RESULT_BYTES // 4], "bytes": size})
    return written


def _looks_like(result: Any) -> str:
    try:
        return _plain(repr(result))[:_ERROR_CHARACTERS]
    except Exception as error:
        return f"<{type(result).__name__} whose repr fails: {type(error).__name__}>"


def _plain(text: str) -> str:
    return text.replace("\x00", "\\x00").encode("utf-8", "backslashreplace").decode()
