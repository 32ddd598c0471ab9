"""The engine contract on ``memory://``."""

from uuid import uuid4

import pytest

from holdfast.testing import AsyncEngineContract, EngineContract


class Memory:
    @pytest.fixture
    def target(self) -> str:
        return f"memory://{uuid4().hex}"


class TestMemory(Memory, EngineContract):
    pass


class TestMemoryAsync(Memory, AsyncEngineContract):
    pass
