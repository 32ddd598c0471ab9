"""What the clients of one place share in this process, found by what it stands for."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from threading import Lock
from typing import Generic, TypeVar

from .. import fork

T = TypeVar("T")


class Shared(Generic[T]):
    """One thing for each identity. It is made for the first that wants it, and given back by the last."""

    def __init__(self) -> None:
        self._things: dict[Hashable, tuple[T, int]] = {}
        self._new_mutex()
        fork.in_child(self._new_mutex)

    def take(self, identity: Hashable, make: Callable[[], T]) -> T:
        """The thing, made now if there is none. Who does not keep it for good must ``give_back`` it."""
        with self.mutex:
            thing, users = self._things.get(identity) or (make(), 0)
            self._things[identity] = (thing, users + 1)
            return thing

    def give_back(self, identity: Hashable) -> T | None:
        """The thing if this was its last user, who is to close it."""
        with self.mutex:
            thing, users = self._things[identity]
            if users > 1:
                self._things[identity] = (thing, users - 1)
                return None
            del self._things[identity]
            return thing

    def all(self) -> list[T]:
        return [thing for thing, _ in list(self._things.values())]

    def _new_mutex(self) -> None:
        self.mutex = Lock()
