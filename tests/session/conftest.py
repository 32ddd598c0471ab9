"""Session locks on both servers that have leases, and processes that take them on command."""

from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest
import redis
from member import Member

from addresses import with_option
from holdfast import schema, settings


@pytest.fixture
def redis_url(holdfast_redis_url: str) -> str:
    return holdfast_redis_url


@pytest.fixture(params=["redis", "table"])
def url(request: pytest.FixtureRequest) -> str:
    if request.param == "redis":
        return str(request.getfixturevalue("holdfast_redis_url"))
    database = str(request.getfixturevalue("holdfast_postgres_url"))
    schema.upgrade(database)
    return with_option(database, "mode=lease")


@pytest.fixture
def db(redis_url: str) -> Iterator[Any]:
    """A connection beside the locks' own."""
    with redis.Redis.from_url(redis_url, decode_responses=True) as connection:
        yield connection


@pytest.fixture
def session_key() -> str:
    return f"{uuid4()}:{uuid4()}:{uuid4()}:web"


@pytest.fixture
def new_member() -> Iterator[Callable[[str], Member]]:
    """Starts processes, which end with the test."""
    members: list[Member] = []

    def start(url: str) -> Member:
        members.append(Member(url))
        return members[-1]

    yield start
    for member in members:
        member.kill()
        if "mode=lease" not in member.url:
            with redis.Redis.from_url(member.url) as connection:  # others look for what was left behind
                for key in [*connection.scan_iter("sesslock:*"), *connection.scan_iter("{sesslock:*}:queue")]:
                    connection.delete(key)


@pytest.fixture(autouse=True)
def _as_configured_by_the_test(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> Iterator[None]:
    monkeypatch.chdir(str(tmp_path))
    settings.forget()
    yield
    settings.forget()
