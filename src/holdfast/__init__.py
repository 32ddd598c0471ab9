"""Holdfast: one writer at a time, everywhere.

Importing this package loads no driver, and asyncio only when ``AsyncLocks`` is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ._sync.blocks import Hold, HoldMany, TryHold
from ._sync.held import Held
from ._sync.locks import Locks
from .advisory import advisory_lock, advisory_lock_or_skip, configure
from .deadline import Deadline
from .engines.base import Capabilities, Engine, Eviction, Holder
from .engines.registry import register_engine
from .errors import (
    AdvisoryLockError,
    BackendUnavailable,
    ClientClosed,
    InvalidKey,
    InvalidOption,
    LockError,
    LockLost,
    LockOrderWarning,
    MissingExtra,
    NotAcquired,
    NotHeld,
    Unsupported,
    WouldDeadlock,
)
from .keys import Key, LockNamespace, lock_key_from_string

if TYPE_CHECKING:
    from ._async.blocks import AsyncHold, AsyncHoldMany, AsyncTryHold
    from ._async.held import AsyncHeld
    from ._async.locks import AsyncLocks
    from .claims import RowClaim, claim, claim_row
    from .session import (
        DetachedLock,
        MutexAcquisitionFailed,
        SessionBusyError,
        SessionLock,
        build_lock_key,
        build_session_key,
        check_session_lock_health,
    )

__version__ = "0.1.0"

__all__ = [
    # clients
    "Locks",
    "AsyncLocks",
    # by function
    "configure",
    "advisory_lock",
    "advisory_lock_or_skip",
    # what they give
    "Held",
    "AsyncHeld",
    "Hold",
    "AsyncHold",
    "TryHold",
    "AsyncTryHold",
    "HoldMany",
    "AsyncHoldMany",
    "Eviction",
    "Holder",
    # locks of the caller's own transaction
    "claim",
    "claim_row",
    "RowClaim",
    # one turn at a time in each conversation
    "SessionLock",
    "DetachedLock",
    "SessionBusyError",
    "MutexAcquisitionFailed",
    "build_lock_key",
    "build_session_key",
    "check_session_lock_health",
    # keys
    "Key",
    "LockNamespace",
    "lock_key_from_string",
    # errors
    "LockError",
    "AdvisoryLockError",
    "NotAcquired",
    "WouldDeadlock",
    "LockLost",
    "NotHeld",
    "Unsupported",
    "BackendUnavailable",
    "ClientClosed",
    "InvalidKey",
    "InvalidOption",
    "MissingExtra",
    "LockOrderWarning",
    # for engines of one's own
    "Engine",
    "Capabilities",
    "Deadline",
    "register_engine",
    "__version__",
]

_ON_DEMAND = {
    "AsyncLocks": "_async.locks",
    "AsyncHeld": "_async.held",
    "AsyncHold": "_async.blocks",
    "AsyncTryHold": "_async.blocks",
    "AsyncHoldMany": "_async.blocks",
    "claim": "claims",
    "claim_row": "claims",
    "RowClaim": "claims",
    "SessionLock": "session",
    "DetachedLock": "session",
    "SessionBusyError": "session",
    "MutexAcquisitionFailed": "session",
    "build_lock_key": "session",
    "build_session_key": "session",
    "check_session_lock_health": "session",
}


def __getattr__(name: str) -> Any:
    module = _ON_DEMAND.get(name)
    if module is None:
        raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(f"holdfast.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
