"""What tests of several folders need."""

import os
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from uuid import uuid4

import psycopg
import pytest
from hypothesis import HealthCheck, settings
from psycopg.conninfo import make_conninfo

from holdfast import schema

# How long an example takes says how busy the machine is, and nothing about what is tested. In CI the examples are the
# same each time: whether a change is good must not hang on luck. Elsewhere others are tried, as many as one likes.
settings.register_profile(
    "any machine",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize=bool(os.environ.get("CI")),
    max_examples=int(os.environ.get("HYPOTHESIS_EXAMPLES", 100)),
)
settings.load_profile("any machine")

# A shell starts what runs in its background deaf to Ctrl-C, which tests press.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def template_database(holdfast_postgres_url: str) -> Iterator[str]:
    """The name of a database with Holdfast's tables, to copy others from: faster than migrating each."""
    name = f"template_{uuid4().hex}"
    with psycopg.connect(holdfast_postgres_url, autocommit=True) as server:
        server.execute(f"create database {name}")
        schema.upgrade(make_conninfo(holdfast_postgres_url, dbname=name))
        yield name
        server.execute(f"drop database {name} with (force)")


@pytest.fixture(scope="session")
def new_database(holdfast_postgres_url: str, template_database: str) -> Callable[[], AbstractContextManager[str]]:
    """Makes databases with Holdfast's tables and nothing in them; gives their addresses."""

    @contextmanager
    def make() -> Iterator[str]:
        name = f"copy_{uuid4().hex}"
        with psycopg.connect(holdfast_postgres_url, autocommit=True) as server:
            server.execute(f"create database {name} template {template_database}")
            at = server.info
            password = f":{at.password}" if at.password else ""
            yield f"postgresql://{at.user}{password}@/{name}?host={at.host}&port={at.port}"
            server.execute(f"drop database {name} with (force)")

    return make


@pytest.fixture
def database_with_tables(new_database: Callable[[], AbstractContextManager[str]]) -> Iterator[str]:
    with new_database() as url:
        yield url


@pytest.fixture(params=[0, 1100], ids=["", "many-descriptors"])
def crowded(request: pytest.FixtureRequest) -> Iterator[None]:
    """Descriptors that are open already: above 1023 of them, ``select`` cannot be used any more."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], min(before[1], 4096)), before[1]))
    taken = [os.open(os.devnull, os.O_RDONLY) for _ in range(request.param)]
    yield
    for descriptor in taken:
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, before)
