"""A database with Holdfast's tables in it, and nothing else."""

from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from holdfast import schema


@pytest.fixture(scope="session")
def template(holdfast_postgres_url: str) -> Iterator[str]:
    """The name of a database that others are copied from: faster than migrating each."""
    name = f"template_{uuid4().hex}"
    with psycopg.connect(holdfast_postgres_url, autocommit=True) as server:
        server.execute(f"create database {name}")
        schema.upgrade(make_conninfo(holdfast_postgres_url, dbname=name))
        yield name
        server.execute(f"drop database {name} with (force)")


@pytest.fixture
def url(holdfast_postgres_url: str, template: str) -> Iterator[str]:
    name = f"agents_{uuid4().hex}"
    with psycopg.connect(holdfast_postgres_url, autocommit=True) as server:
        server.execute(f"create database {name} template {template}")
        user = server.info.user
        host = server.info.host
        yield f"postgresql://{user}@/{name}?host={host}&port={server.info.port}"
        server.execute(f"drop database {name} with (force)")


@pytest.fixture
def db(url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection
