"""A database of its own, with Holdfast's tables, for every test; instances in processes of their own."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from instances import Effects, Instance
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from holdfast import schema


@pytest.fixture(scope="session")
def template(holdfast_postgres_url: str) -> Iterator[str]:
    name = f"scheduler_{uuid4().hex}"
    with psycopg.connect(holdfast_postgres_url, autocommit=True) as server:
        server.execute(f"create database {name}")
        schema.upgrade(_address(holdfast_postgres_url, name))
        yield name
        server.execute(f"drop database {name} with (force)")


@pytest.fixture
def url(holdfast_postgres_url: str, template: str) -> Iterator[str]:
    name = f"scheduler_{uuid4().hex}"
    with psycopg.connect(holdfast_postgres_url, autocommit=True) as server:
        server.execute(f"create database {name} template {template}")
        yield _address(holdfast_postgres_url, name)
        server.execute(f"drop database {name} with (force)")


@pytest.fixture
def db(url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(url, autocommit=True, row_factory=psycopg.rows.dict_row) as connection:
        yield connection


@pytest.fixture
def effects(tmp_path: Path) -> Effects:
    return Effects(tmp_path / "effects")


@pytest.fixture
def instance(url: str, effects: Effects) -> Iterator[Callable[..., Instance]]:
    """Starts an instance in a process of its own; options are the scheduler's. All are gone at the end."""
    started: list[Instance] = []

    def start(at: str = url, **options: Any) -> Instance:
        started.append(Instance(at, effects, options))
        return started[-1]

    yield start
    for one in started:
        one.kill()


def _address(url: str, name: str) -> str:
    """As an address of the postgresql:// kind, which a server on a unix socket can have, too."""
    given = conninfo_to_dict(make_conninfo(url, dbname=name))
    parts = "&".join(f"{key}={value}" for key, value in given.items() if key != "dbname" and value is not None)
    return f"postgresql:///{name}?{parts}"
