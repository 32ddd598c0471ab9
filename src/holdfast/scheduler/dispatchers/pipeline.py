"""``execute_pipeline``: tasks one after another, each with what the ones before it returned.

Config: ``steps``, each like a ``run_task`` with a ``name``. A parameter named ``previous`` gets the output of the step
before, one named ``outputs`` those of all, by name. The first step that fails ends it.
"""

from __future__ import annotations

from typing import Any

from ..attempt import problem_in
from ..execution import Execution
from .tasks import call_task


async def execute_pipeline(execution: Execution) -> dict[str, Any]:
    steps = execution.action.action_config.get("steps")
    if not isinstance(steps, list) or not steps or not all(isinstance(step, dict) for step in steps):
        raise ValueError("action_config: steps is a list of objects, each with a task")
    outputs: dict[str, Any] = {}
    previous: Any = None
    for number, step in enumerate(steps, 1):
        name = str(step.get("name") or f"step {number}")
        execution.check()
        try:
            previous = await call_task(execution, step, previous=previous, outputs=dict(outputs))
        except Exception as error:
            return {"error": f"{name}: {type(error).__name__}: {error}", "outputs": outputs}
        outputs[name] = previous
        problem = problem_in(previous)
        if problem:
            return {"error": f"{name}: {problem}", "outputs": outputs}
    return {"outputs": outputs}
