"""Servers that run. Most tests share one, on a database that is emptied before each; some start their own."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest
from psycopg.errors import LockNotAvailable
from running import Running, wait_until


class Shared(NamedTuple):
    url: str
    server: Running


@pytest.fixture(scope="session")
def shared(
    new_database: Callable[[], AbstractContextManager[str]], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Shared]:
    data = tmp_path_factory.mktemp("shared") / "data"
    with new_database() as url, Running({"HOLDFAST_DATABASE_URL": url}, data) as server:
        yield Shared(url, server)


@pytest.fixture
def url(request: pytest.FixtureRequest) -> str:
    own = "start" in request.fixturenames
    return str(request.getfixturevalue("database_with_tables") if own else request.getfixturevalue("shared").url)


@pytest.fixture
def db(url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def server(shared: Shared) -> Running:
    with psycopg.connect(shared.url, autocommit=True, options="-c lock_timeout=100ms") as db:
        wait_until(lambda: emptied(db), "the server does not come to rest")
    return shared.server


def emptied(db: psycopg.Connection[Any]) -> bool:
    """What the test before has left to the server may still be under way: insisting would be a deadlock."""
    try:
        db.execute("truncate holdfast.project, holdfast.agent cascade")
    except LockNotAvailable:
        return False
    return True


@pytest.fixture
def start(url: str, tmp_path: Path) -> Iterator[Callable[..., Running]]:
    """Starts servers on the test's own database, each a process of its own; all end with the test."""
    with ExitStack() as running:

        def begin(**settings: str) -> Running:
            return running.enter_context(Running({"HOLDFAST_DATABASE_URL": url} | settings, tmp_path / "data"))

        yield begin
