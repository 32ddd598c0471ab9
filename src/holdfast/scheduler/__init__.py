"""Scheduled actions on any number of instances: every occurrence is claimed once.

On PostgreSQL, or (``async_db=None``) in this process's memory. Needs ``holdfast[scheduler]``.
"""

from . import needs  # noqa: F401  first: it says what is missing
from .actions import RunState, ScheduledAction, ScheduledRun
from .agenda import NoSuchAction, NotNow
from .checks import InvalidField
from .counts import Health, Statistics
from .dispatchers import ACTION_DISPATCHERS, NOTIFICATION_CHANNELS, register_task
from .dispatchers.tasks import limit_tasks_to
from .execution import ClaimLost, Execution
from .scheduler import SCHEDULER_LOCK_NAMESPACE, Scheduler, get_scheduler

__all__ = [
    "Scheduler",
    "get_scheduler",
    "SCHEDULER_LOCK_NAMESPACE",
    # what is scheduled
    "ScheduledAction",
    "ScheduledRun",
    "RunState",
    # what it does
    "ACTION_DISPATCHERS",
    "NOTIFICATION_CHANNELS",
    "Execution",
    "register_task",
    "limit_tasks_to",
    # how it is
    "Health",
    "Statistics",
    # errors
    "ClaimLost",
    "InvalidField",
    "NoSuchAction",
    "NotNow",
]
