"""The engine contract on ``postgresql://…?mode=lease``: leases in a table of a real server."""

import pytest

from addresses import with_option
from holdfast import schema
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


class LeaseTable:
    @pytest.fixture
    def target(self, holdfast_postgres_url: str) -> str:
        schema.upgrade(holdfast_postgres_url)
        return with_option(holdfast_postgres_url, "mode=lease")


class TestLeaseTable(LeaseTable, EngineContract, BetweenProcesses, InOrderOfArrival, Detaching, Leases):
    pass


class TestLeaseTableAsync(
    LeaseTable, AsyncEngineContract, AsyncBetweenProcesses, AsyncInOrderOfArrival, AsyncDetaching, AsyncLeases
):
    pass
