"""The engine contract on ``file://``."""

from pathlib import Path

import pytest

from holdfast.testing import AsyncBetweenProcesses, AsyncEngineContract, BetweenProcesses, EngineContract


class Files:
    @pytest.fixture
    def target(self, tmp_path: Path) -> str:
        return f"{tmp_path.as_uri()}/locks"


class TestFile(Files, EngineContract, BetweenProcesses):
    pass


class TestFileAsync(Files, AsyncEngineContract, AsyncBetweenProcesses):
    pass
