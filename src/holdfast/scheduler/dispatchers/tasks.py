"""``run_task``: a Python callable, registered under a name or found by its dotted path.

Config: ``task``, ``args``, ``kwargs``. A parameter named ``execution`` gets the ``Execution``. A plain function is
called in a thread. Whoever may create actions can have any importable function called: see ``limit_tasks_to``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any, Final, TypeVar

from ..execution import Execution

F = TypeVar("F", bound=Callable[..., Any])

TASKS: Final[dict[str, Callable[..., Any]]] = {}
"""Registered by name. These go before dotted paths."""

_allowed: tuple[str, ...] | None = None


def register_task(name: str) -> Callable[[F], F]:
    """``@register_task("nightly")`` makes a function known as the task ``nightly``."""
    if not isinstance(name, str):
        raise TypeError("register_task is used with a name: @register_task('nightly')")

    def register(function: F) -> F:
        TASKS[name] = function
        return function

    return register


def limit_tasks_to(modules: Iterable[str] | None) -> None:
    """Only these modules and what is in them may be imported for a dotted path; none with ``()``, any with ``None``."""
    global _allowed
    _allowed = None if modules is None else tuple(modules)


async def run_task(execution: Execution) -> Any:
    return await call_task(execution, execution.action.action_config)


async def call_task(execution: Execution, config: Mapping[str, Any], **more: Any) -> Any:
    """``more`` goes to the parameters of those names that the task has, and to no others."""
    function = find_task(config.get("task"))
    arguments, named = config.get("args", []), config.get("kwargs", {})
    if not isinstance(arguments, list) or not isinstance(named, Mapping):
        raise ValueError("action_config: args is a list, and kwargs an object")
    named = {**_wanted(function, {"execution": execution, **more}), **named}
    if inspect.iscoroutinefunction(function):
        return await function(*arguments, **named)
    outcome = await execution.in_thread(function, *arguments, **named)
    return await outcome if inspect.isawaitable(outcome) else outcome


def find_task(name: object) -> Callable[..., Any]:
    if not isinstance(name, str) or not name:
        raise ValueError("action_config: task is the name of a registered task, or a path such as package.module:name")
    if name in TASKS:
        return TASKS[name]
    module, _, path = name.partition(":") if ":" in name else name.rpartition(".")
    if not module or not path:
        raise LookupError(f"task {name!r} is not registered here, and is no path such as package.module:name")
    if _allowed is not None and not any(module == one or module.startswith(f"{one}.") for one in _allowed):
        raise PermissionError(f"task {name!r} is outside the modules that tasks may come from")
    found: Any = import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    if not callable(found):
        raise TypeError(f"task {name!r} cannot be called")
    return found  # type: ignore[no-any-return]


def _wanted(function: Callable[..., Any], offered: Mapping[str, Any]) -> dict[str, Any]:
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):  # some of C's functions do not say
        return {}
    return {name: value for name, value in offered.items() if name in parameters}
