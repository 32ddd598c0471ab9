"""What a claim sends, written once for every kind of connection.

A claim is a generator that yields a ``Step`` (one statement) and is sent the ``Answer``. What goes wrong with the
statement is thrown into the generator at that very ``yield``. The drivers in ``connections`` do nothing else.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

T = TypeVar("T")

BUSY: Final = "55P03"
"""lock_not_available: of NOWAIT, and of a lock_timeout that passed."""
DEADLOCK: Final = "40P01"


class Step(NamedTuple):
    """One statement. Parameters stand as ``%s``, any other per cent sign as ``%%``, if there are parameters."""

    sql: str
    parameters: tuple[Any, ...] = ()


class Answer(NamedTuple):
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[Any]] = ()


Steps: TypeAlias = Generator[Step, Answer, T]


def in_savepoint(work: Steps[T]) -> Steps[T]:
    """Runs ``work``; whatever fails in it, the transaction around it is as usable as it was before."""
    yield Step("savepoint holdfast_claim")
    try:
        result = yield from work
    except GeneratorExit:  # whoever sends the steps is gone; nothing can be sent any more
        raise
    except BaseException:  # a cancelled task and Ctrl-C as well: what was locked by then is let go
        try:
            yield Step("rollback to savepoint holdfast_claim")
            yield Step("release savepoint holdfast_claim")
        except Exception:
            pass  # the connection is gone, and the transaction with it; what went wrong first says more
        raise
    yield Step("release savepoint holdfast_claim")
    return result


def sqlstate(error: BaseException) -> str | None:
    """The server's code for what went wrong, from any driver, bare or wrapped by SQLAlchemy."""
    error = getattr(error, "orig", None) or error
    code = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
    return code if isinstance(code, str) else None
