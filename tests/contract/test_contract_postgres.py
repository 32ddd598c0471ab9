"""The engine contract on ``postgresql://``: advisory locks of a real server."""

import pytest

from holdfast.testing import AsyncBetweenProcesses, AsyncEngineContract, BetweenProcesses, EngineContract


class Postgres:
    @pytest.fixture
    def target(self, holdfast_postgres_url: str) -> str:
        return holdfast_postgres_url


class TestPostgres(Postgres, EngineContract, BetweenProcesses):
    pass


class TestPostgresAsync(Postgres, AsyncEngineContract, AsyncBetweenProcesses):
    pass
