"""A server of its own for tests that restart it, and eyes to see what is left in it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import redis
from sight import Database, wait_until


@pytest.fixture
def url(holdfast_redis_url: str) -> str:
    return holdfast_redis_url


@pytest.fixture
def db(url: str) -> Iterator[Database]:
    """A connection beside the engine's own."""
    with redis.Redis.from_url(url, decode_responses=True) as connection:
        yield Database(connection)


@pytest.fixture
def key() -> str:
    return f"test-{uuid4().hex}"


@pytest.fixture(autouse=True)
def _nothing_left(request: pytest.FixtureRequest, db: Database) -> Iterator[None]:
    yield
    wait_until(lambda: not db.locks(), "a lock or a queue was left behind")


@pytest.fixture
def own_server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """A server that the test may restart. Its parameter, if there is one, are settings of the server."""
    from holdfast.embedded import start_redis

    given = dict(getattr(request, "param", {"appendonly": "no", "save": ""}))
    with start_redis(tmp_path / "server", options=given) as started:
        yield started
