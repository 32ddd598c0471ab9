import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from embedded_processes import Stage


@pytest.fixture(params=["postgres", "redis"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def bare_stage() -> Iterator[Stage]:
    """A place for a server that does not exist yet, with a path short enough for a socket in it."""
    with tempfile.TemporaryDirectory(prefix="hf-", dir="/tmp") as folder:
        stage = Stage(Path(folder) / "data")
        try:
            yield stage
        finally:
            stage.strike()


@pytest.fixture
def stage(bare_stage: Stage, spare_homes: Path) -> Iterator[Stage]:
    """The same with a PostgreSQL cluster that other tests have used: making a new one takes most of a test's time."""
    spare, home = spare_homes / "postgres", bare_stage.folder / "postgres"
    if spare.exists():
        bare_stage.folder.mkdir(mode=0o700)
        os.chown(bare_stage.folder, spare.stat().st_uid, spare.stat().st_gid)
        spare.rename(home)
    yield bare_stage
    bare_stage.strike()
    if (home / "cluster").exists():
        home.rename(spare)


@pytest.fixture(scope="session")
def spare_homes() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="hf-", dir="/tmp") as folder:
        yield Path(folder)
