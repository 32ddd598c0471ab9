"""``send_notification``: to the log, to a webhook, or to a channel of one's own in ``NOTIFICATION_CHANNELS``.

Config: ``channel`` (``log`` unless said otherwise), ``message``, ``title``; ``level`` for the log, ``url`` and
``headers`` for the webhook.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from typing import Any, Final

from ..execution import Execution
from .api import request

_log = logging.getLogger("holdfast.scheduler.notification")


async def send_notification(execution: Execution) -> Any:
    name = execution.action.action_config.get("channel", "log")
    channel = NOTIFICATION_CHANNELS.get(name) if isinstance(name, str) else None
    if channel is None:
        raise LookupError(f"action_config: channel {name!r} is unknown; there are {', '.join(NOTIFICATION_CHANNELS)}")
    if inspect.iscoroutinefunction(channel):
        return await channel(execution)
    return await execution.in_thread(channel, execution)


async def to_log(execution: Execution) -> dict[str, Any]:
    config = execution.action.action_config
    level = logging.getLevelNamesMapping().get(str(config.get("level", "info")).upper(), logging.INFO)
    _log.log(level, "action=notification title=%r message=%r", config.get("title"), config.get("message"))
    return {"channel": "log"}


async def to_webhook(execution: Execution) -> dict[str, Any]:
    config = execution.action.action_config
    body = {
        "title": config.get("title"),
        "message": config.get("message"),
        "action": {"id": execution.action.id, "name": execution.action.name},
        "run": {"id": execution.run.id, "scheduled_for": execution.run.scheduled_for.isoformat()},
    }
    return await request(execution, {**config, "method": "POST", "json": body})


NOTIFICATION_CHANNELS: Final[dict[str, Callable[[Execution], Any]]] = {"log": to_log, "webhook": to_webhook}
