"""pytest fixtures: a PostgreSQL and a Redis for the whole test session.

Those that ``HOLDFAST_TEST_DATABASE_URL`` and ``HOLDFAST_TEST_REDIS_URL`` name, else embedded ones in a temporary
folder. Nothing is imported or started before a test asks for it.
"""

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def holdfast_postgres_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a PostgreSQL that tests may use as they like."""
    given = os.environ.get("HOLDFAST_TEST_DATABASE_URL")
    if given:
        yield given
        return
    from holdfast.embedded import start_postgres

    # Tests lose nothing that matters when the machine goes down: do not wait for the disk.
    fast = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
    with start_postgres(tmp_path_factory.mktemp("holdfast"), options=fast) as server:
        yield server.url


@pytest.fixture(scope="session")
def holdfast_redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Redis that tests may use as they like."""
    given = os.environ.get("HOLDFAST_TEST_REDIS_URL")
    if given:
        yield given
        return
    from holdfast.embedded import start_redis

    with start_redis(tmp_path_factory.mktemp("holdfast"), options={"appendonly": "no", "save": ""}) as server:
        yield server.url
