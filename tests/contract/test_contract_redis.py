"""The engine contract on ``redis://``: leases of a real server."""

import pytest

from holdfast.testing import (
    AsyncBetweenProcesses,
    AsyncDetaching,
    AsyncEngineContract,
    AsyncInOrderOfArrival,
    AsyncLeases,
    BetweenProcesses,
    Detaching,
    EngineContract,
    InOrderOfArrival,
    Leases,
)


class Redis:
    @pytest.fixture
    def target(self, holdfast_redis_url: str) -> str:
        return holdfast_redis_url


class TestRedis(Redis, EngineContract, BetweenProcesses, InOrderOfArrival, Detaching, Leases):
    pass


class TestRedisAsync(
    Redis, AsyncEngineContract, AsyncBetweenProcesses, AsyncInOrderOfArrival, AsyncDetaching, AsyncLeases
):
    pass
