"""A server of its own for tests that restart it or change its roles, and eyes to see what is left in it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from eyes import Server, place_to_listen, wait_until


@pytest.fixture
def url(holdfast_postgres_url: str) -> str:
    return holdfast_postgres_url


@pytest.fixture
def db(url: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection beside the engine's own."""
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def server(db: psycopg.Connection[Any]) -> Server:
    return Server(db)


@pytest.fixture(autouse=True)
def _nothing_left(server: Server) -> Iterator[None]:
    yield
    wait_until(lambda: not server.advisory_locks(), "an advisory lock was left behind")


@pytest.fixture
def own_server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """A server that the test may restart. Its parameter, if there is one, are settings of the server."""
    from holdfast.embedded import start_postgres

    fast = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
    given = dict(getattr(request, "param", {}))
    if "listen_addresses" in given:
        address, port = place_to_listen()
        given |= {"listen_addresses": address, "port": str(port)}
    with start_postgres(tmp_path / "server", options=fast | given) as started:
        yield started
