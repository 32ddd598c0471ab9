"""The engine contract on ``memory://``."""

from uuid import uuid4

import pytest

from holdfast.testing import (
    AsyncDetaching,
    AsyncEngineContract,
    AsyncInOrderOfArrival,
    Detaching,
    EngineContract,
    InOrderOfArrival,
)


class Memory:
    @pytest.fixture
    def target(self) -> str:
        return f"memory://{uuid4().hex}"


class TestMemory(Memory, EngineContract, InOrderOfArrival, Detaching):
    pass


class TestMemoryAsync(Memory, AsyncEngineContract, AsyncInOrderOfArrival, AsyncDetaching):
    pass
