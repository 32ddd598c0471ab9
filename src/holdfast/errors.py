"""What goes wrong with a lock. One root, every error picklable, the key on it, never a secret in its message."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .keys import Key


class LockError(Exception):
    """The lock operation failed."""

    key: Key | None
    """What was to be locked, where the error is about one key."""

    def __init__(self, message: str | None = None, *, key: Key | None = None) -> None:
        # The docstring's first line is the default message, so that the two cannot disagree.
        super().__init__(message or (type(self).__doc__ or "").partition("\n")[0])
        self.key = key

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(kind: type[LockError], args: tuple[Any, ...], state: dict[str, Any]) -> LockError:
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class NotAcquired(LockError, TimeoutError):
    """The lock was busy until the deadline passed."""


class WouldDeadlock(LockError):
    """Waiting for this lock could never end, or not safely."""


class LockLost(LockError):
    """The lock is not ours any more; somebody else may be working on the entity."""


class NotHeld(LockError):
    """The handle holds nothing: it was released or detached before, or belongs to another process."""


class Unsupported(LockError):
    """The engine cannot do what was asked for."""


class BackendUnavailable(LockError):
    """The place where the lock lives could not be reached or used."""


class ClientClosed(LockError):
    """This client was closed; make a new one with from_url()"""


class InvalidKey(LockError, ValueError):
    """The key cannot be used."""


class InvalidOption(LockError, ValueError):
    """An option cannot be used."""


class MissingExtra(LockError, ImportError):
    """A package that the engine needs is not installed."""


AdvisoryLockError = LockError


class LockOrderWarning(UserWarning):
    """Two places take the same locks in opposite order: they can dead-lock each other."""
