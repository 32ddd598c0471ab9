"""One turn at a time in each conversation: ``SessionLock``, above the clients. Loads no driver by itself."""

from .errors import MutexAcquisitionFailed, SessionBusyError
from .health import check_session_lock_health
from .keys import build_lock_key, build_session_key
from .lock import DetachedLock, SessionLock

__all__ = [
    "SessionLock",
    "DetachedLock",
    "SessionBusyError",
    "MutexAcquisitionFailed",
    "build_lock_key",
    "build_session_key",
    "check_session_lock_health",
]
