"""A database for each test, and a look into it."""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest


@pytest.fixture
def url(database_with_tables: str) -> str:
    return database_with_tables


@pytest.fixture
def db(url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection
