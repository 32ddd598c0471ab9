"""``claim_row``: one row locked for the rest of the caller's transaction, with *busy* told from *missing*."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, cast, get_args, overload

from ..errors import InvalidOption, NotHeld
from .connections import AsyncConnection, Pending, SyncConnection, carry_out
from .steps import BUSY, Answer, Step, Steps, in_savepoint, sqlstate

Strength: TypeAlias = Literal["no key update", "update"]
Outcome: TypeAlias = Literal["claimed", "busy", "missing"]
Table: TypeAlias = "str | tuple[str, str]"


class RowClaim:
    """What came of ``claim_row``. True when the row is claimed."""

    __slots__ = ("_row", "outcome")

    outcome: Outcome

    def __init__(self, outcome: Outcome, row: dict[str, Any] | None = None) -> None:
        self.outcome = outcome
        self._row = row

    @property
    def row(self) -> dict[str, Any]:
        """The claimed row's values by column, as they are now that it is locked."""
        if self._row is None:
            raise NotHeld(f"the row was {self.outcome}: none is claimed; ask the claim before its row")
        return self._row

    @property
    def busy(self) -> bool:
        """Another transaction has the row locked, or is changing or deleting it."""
        return self.outcome == "busy"

    @property
    def missing(self) -> bool:
        """There is no such row, as far as this transaction can see."""
        return self.outcome == "missing"

    def __bool__(self) -> bool:
        return self.outcome == "claimed"

    def __repr__(self) -> str:
        return f"<RowClaim {self.outcome}>"


@overload
def claim_row(
    conn: SyncConnection,
    table: Table,
    where: Mapping[str, Any],
    *,
    strength: Strength = "no key update",
    columns: str | Iterable[str] = "*",
) -> RowClaim: ...
@overload
def claim_row(
    conn: AsyncConnection,
    table: Table,
    where: Mapping[str, Any],
    *,
    strength: Strength = "no key update",
    columns: str | Iterable[str] = "*",
) -> Pending[RowClaim]: ...
def claim_row(
    conn: Any,
    table: Table,
    where: Mapping[str, Any],
    *,
    strength: Strength = "no key update",
    columns: str | Iterable[str] = "*",
) -> RowClaim | Pending[RowClaim]:
    """Locks the one row of ``table`` whose columns have these values, without waiting; to be awaited if async.

    ``table`` is ``"turns"``, ``"app.turns"`` or, for names with a dot in them, ``("app", "turns")``. All names are
    quoted: they are taken as they are in the catalogue, capital letters too. ``strength="no key update"`` lets others
    insert rows that refer to this one; ``"update"`` keeps them waiting, as is needed before deleting the row or
    changing its key.
    """
    if strength not in get_args(Strength):
        raise InvalidOption(f"strength={strength!r}: it is 'no key update' or 'update'")
    conditions, values = _conditions(where)
    statement = Step(
        f"select {_columns(columns)} from {_table(table)} where {conditions} limit %s for {strength} nowait",
        (*values, 2),  # a second row is enough to know that it is not one
    )
    return carry_out(conn, _claiming(statement))


def _claiming(statement: Step) -> Steps[RowClaim]:
    try:
        answer = yield from in_savepoint(_one_row(statement))
    except Exception as error:
        if sqlstate(error) != BUSY:
            raise
        return RowClaim("busy")
    if not answer.rows:
        return RowClaim("missing")
    return RowClaim("claimed", dict(zip(answer.columns, answer.rows[0], strict=True)))


def _one_row(statement: Step) -> Steps[Answer]:
    answer = yield statement
    if len(answer.rows) > 1:  # raised inside the savepoint: both are let go
        raise InvalidOption("where: it is true of more than one row; name one by its key")
    return answer


def _conditions(where: Mapping[str, Any]) -> tuple[str, tuple[Any, ...]]:
    if not isinstance(where, Mapping) or not where:
        raise InvalidOption("where: give the columns that tell the row, with their values, such as {'id': 7}")
    # "= null" is true of no row, and a row that is there would be told missing.
    conditions = [f"{_quoted('where', name)} {'is null' if value is None else '= %s'}" for name, value in where.items()]
    return " and ".join(conditions), tuple(value for value in where.values() if value is not None)


def _columns(columns: str | Iterable[str]) -> str:
    if columns == "*":
        return "*"
    if not isinstance(columns, Iterable):
        raise InvalidOption(f"columns={columns!r:.80}: give names of columns, or '*'")
    names = [columns] if isinstance(columns, str) else list(columns)
    if not names:
        raise InvalidOption("columns: none is named; give at least one, or '*'")
    return ", ".join(_quoted("columns", name) for name in names)


def _table(table: Table) -> str:
    names: Sequence[str] = table.split(".") if isinstance(table, str) else table
    if not isinstance(table, str | tuple) or not 1 <= len(names) <= 2:
        raise InvalidOption(f"table={table!r:.80}: give 'table', 'schema.table' or ('schema', 'table')")
    return ".".join(_quoted("table", name) for name in names)


def _quoted(option: str, name: object) -> str:
    """The name as an identifier. Between double quotes nothing but a double quote has a meaning to PostgreSQL."""
    try:
        usable = isinstance(name, str) and name and "\0" not in name and name.encode()
    except UnicodeEncodeError:  # a lone surrogate
        usable = False
    if not usable:
        raise InvalidOption(f"{option}: {name!r:.80} cannot be the name of anything")
    # Doubled per cent signs: the drivers read the statement as a template.
    return '"' + cast(str, name).replace('"', '""').replace("%", "%%") + '"'
