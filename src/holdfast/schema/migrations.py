"""Brings a database up to date, under a lock that is taken by trying."""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ..deadline import Deadline
from ..errors import BackendUnavailable, MissingExtra, Unsupported
from ..flow import ThreadWakeup
from ..keys import lock_key_from_string

if TYPE_CHECKING:
    from alembic.config import Config
    from sqlalchemy import Connection

SCHEMA: Final = "holdfast"
VERSION_TABLE: Final = "migrations"

_LOCK: Final = lock_key_from_string("holdfast.schema")
_NEEDS: Final = ("alembic", "sqlalchemy", "psycopg")
_TRY_AGAIN: Final = 0.1


class Standing(NamedTuple):
    """How far a database has come."""

    found: str | None
    """The newest migration that it has; None if it has none of our tables."""
    newest: str

    @property
    def up_to_date(self) -> bool:
        return self.found == self.newest


def upgrade(url: str, *, wait: float = 60.0) -> Standing:
    """Runs the migrations that are missing, all or none. Returns how far the database had come before.

    Of several at once, one does it; the others try again until it is done. They do not wait inside the server: a
    statement that waits holds a snapshot, and could dead-lock with what the migrations do.
    """
    from alembic import command

    with _connected(url) as connection:
        deadline = Deadline.after(wait)
        while True:
            with connection.begin():
                if _try_lock(connection):
                    before = _standing(connection)
                    command.upgrade(_config(connection=connection), "head")
                    return before
            if deadline.passed:
                raise BackendUnavailable(f"another upgrade was at work for all of {wait:g} s; try again")
            ThreadWakeup().sleep(Deadline.after(min(_TRY_AGAIN, deadline.remaining))).block()


def standing(url: str) -> Standing:
    """How far the database has come. Changes nothing."""
    with _connected(url) as connection:
        return _standing(connection)


def sql() -> str:
    """All migrations as a script, for those who let nobody but a DBA change the schema."""
    _check_installed()
    from alembic import command

    written = io.StringIO()
    command.upgrade(_config(output_buffer=written), "head", sql=True)
    return written.getvalue()


def _standing(connection: Connection) -> Standing:
    from alembic.migration import MigrationContext
    from alembic.script import ScriptDirectory

    known = ScriptDirectory.from_config(_config())
    newest = known.get_current_head()
    assert newest is not None
    options = {"version_table": VERSION_TABLE, "version_table_schema": SCHEMA}
    found = MigrationContext.configure(connection, opts=options).get_current_revision()
    if found is not None and found not in {script.revision for script in known.walk_revisions()}:
        raise Unsupported(f"schema {SCHEMA} is of a newer version of Holdfast ({found}; this one knows {newest})")
    return Standing(found, newest)


def _try_lock(connection: Connection) -> bool:
    # Of the transaction, not of the session: it ends with the migrations, however they end, and through any pooler.
    return bool(connection.exec_driver_sql(f"select pg_try_advisory_xact_lock({_LOCK})").scalar())


def _config(*, connection: Connection | None = None, output_buffer: io.StringIO | None = None) -> Config:
    from alembic.config import Config

    config = Config(output_buffer=output_buffer, attributes={"connection": connection})
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    return config


@contextmanager
def _connected(url: str) -> Iterator[Connection]:
    _check_installed()
    import psycopg
    import sqlalchemy

    from ..engines.postgres.connect import plain_conninfo

    # libpq reads the address, not SQLAlchemy: they differ in what they take, and errors of the latter may show it.
    conninfo = plain_conninfo(url)  # what names the locks names the tables, too
    engine = sqlalchemy.create_engine(
        "postgresql+psycopg://", creator=lambda: psycopg.connect(conninfo), poolclass=sqlalchemy.NullPool
    )
    try:
        with engine.connect() as connection:
            yield connection
    except sqlalchemy.exc.DBAPIError as error:
        raise BackendUnavailable(f"PostgreSQL: {_first_line(error.orig)}") from None


def _check_installed() -> None:
    missing = [name for name in _NEEDS if find_spec(name) is None]
    if missing:
        raise MissingExtra(f"migrations need {', '.join(missing)}: pip install 'holdfast[db]'")


def _first_line(error: Any) -> str:
    return str(error).partition("\n")[0]
