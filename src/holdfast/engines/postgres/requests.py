"""What is asked of a lock connection. Requests that come in while a round trip is under way go out in the next one."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum
from typing import Any

from ...flow import Wakeup
from .lines import Line


class Kind(Enum):
    TRY = "try"
    UNLOCK = "unlock"
    ASK = "ask"


class Request:
    """A try or an unlock for a line, or any other statement. ``wakeup`` is told when it is done."""

    __slots__ = ("can_serve", "done", "error", "kind", "line", "offered", "parameters", "result", "statement", "wakeup")

    def __init__(
        self,
        kind: Kind,
        line: Line | None = None,
        *,
        statement: str = "",
        parameters: Sequence[bytes | None] = (),
    ) -> None:
        self.kind = kind
        self.line = line
        self.statement = statement
        self.parameters = parameters
        self.wakeup: Wakeup | None = None
        self.can_serve = False
        """Whether a thread sleeps at ``wakeup`` that can be given the duty of the connection."""
        self.offered = False
        self.done = False
        self.result: Any = None
        self.error: BaseException | None = None

    def finish(self, result: Any, error: BaseException | None = None) -> None:
        self.result, self.error, self.done = result, error, True
        if self.wakeup is not None:
            self.wakeup.wake()
