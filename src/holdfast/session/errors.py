"""What is raised when a conversation is busy. That its lock cannot be asked for at all is ``BackendUnavailable``."""

from __future__ import annotations

from ..errors import NotAcquired
from ..keys import Key


class _Busy(NotAcquired):
    session_key: str | None
    """Which conversation."""

    def __init__(self, session_key: str | None = None, message: str | None = None, *, key: Key | None = None) -> None:
        if message is None and session_key is not None:
            message = f"{session_key}: {(type(self).__doc__ or '').partition(chr(10))[0]}"
        super().__init__(message, key=key)
        self.session_key = session_key


class SessionBusyError(_Busy):
    """Another turn of this conversation is under way."""


class MutexAcquisitionFailed(_Busy):
    """The workflow's step could not get the conversation's lock in time; another turn has it."""
