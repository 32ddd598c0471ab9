"""The engine contract on ``postgresql://``: advisory locks of a real server."""

import pytest

from addresses import with_option
from holdfast import schema
from holdfast.testing import AsyncBetweenProcesses, AsyncEngineContract, BetweenProcesses, EngineContract


class Postgres:
    @pytest.fixture
    def target(self, holdfast_postgres_url: str) -> str:
        return holdfast_postgres_url


class TestPostgres(Postgres, EngineContract, BetweenProcesses):
    pass


class Fenced:
    """With numbers for every grant."""

    @pytest.fixture
    def target(self, holdfast_postgres_url: str) -> str:
        schema.upgrade(holdfast_postgres_url)
        return with_option(holdfast_postgres_url, "fence=true")


class TestFenced(Fenced, EngineContract, BetweenProcesses):
    pass


class TestFencedAsync(Fenced, AsyncEngineContract, AsyncBetweenProcesses):
    pass


class TestPostgresAsync(Postgres, AsyncEngineContract, AsyncBetweenProcesses):
    pass
