"""What actions can do: a handler for each action type. Add your own to ``ACTION_DISPATCHERS``."""

from __future__ import annotations

from typing import Final

from ..attempt import Handler
from .api import call_api
from .notification import NOTIFICATION_CHANNELS, send_notification
from .pipeline import execute_pipeline
from .tasks import TASKS, register_task, run_task

ACTION_DISPATCHERS: Final[dict[str, Handler]] = {
    "run_task": run_task,
    "execute_pipeline": execute_pipeline,
    "send_notification": send_notification,
    "call_api": call_api,
}

__all__ = ["ACTION_DISPATCHERS", "NOTIFICATION_CHANNELS", "TASKS", "register_task"]
