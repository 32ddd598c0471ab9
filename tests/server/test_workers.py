"""The processes of a server: those that die are replaced, and a server that cannot start says so."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
from running import Running, event, wait_until

from holdfast.server.app import create_app
from holdfast.server.settings import load
from holdfast.testing import PATIENCE

Db = psycopg.Connection[Any]

HERE = "query = 'listen holdfast_inbox' and datname = current_database()"


def worker_ids(db: Db) -> set[int]:
    names = db.execute(f"select application_name from pg_stat_activity where {HERE}").fetchall()
    return {int(name.removeprefix("holdfast[").removesuffix("]")) for (name,) in names}


def test_workers_do_not_outlive_the_process_that_started_them(start: Callable[..., Running], db: Db) -> None:
    server = start(HOLDFAST_WORKERS="2")
    server.kill()
    connections = "select count(*) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid()"
    wait_until(lambda: db.execute(connections).fetchone() == (0,), "a worker lives on")


def test_a_worker_that_is_killed_is_replaced(start: Callable[..., Running], db: Db) -> None:
    server = start(HOLDFAST_WORKERS="2")
    wait_until(lambda: len(worker_ids(db)) == 2, "two workers listen")
    before = worker_ids(db)
    os.kill(min(before), signal.SIGKILL)
    wait_until(lambda: len(worker_ids(db) - before) == 1, "no new worker came")
    with server.client() as client:
        assert client.post("/hook", json=event("Note")).status_code == 200
    assert server.terminate() == 0
    assert "worker_replaced" in server.log.read_text()


def test_an_application_that_has_ended_leaves_signals_as_they_were(database_with_tables: str, tmp_path: Path) -> None:
    """Others may go on in its process: they would get the end of a loop that is closed."""

    async def live() -> None:
        app = create_app(load(database_url=database_with_tables, data_dir=tmp_path))
        async with app.router.lifespan_context(app):
            assert [signal.getsignal(number) for number in numbers] != before

    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.getsignal(number) for number in numbers]
    asyncio.run(live())
    assert [signal.getsignal(number) for number in numbers] == before


@pytest.mark.parametrize("workers", ["1", "2"])
@pytest.mark.parametrize(
    "trouble",
    ["os.environ['HOLDFAST_DATABASE_URL'] = 'postgresql://127.0.0.1:1/gone'", "os.environ['HOLDFAST_PORT'] = 'none'"],
    ids=["the database is gone", "the settings have changed"],
)
def test_a_server_whose_workers_cannot_start_ends_with_an_error(
    url: str, tmp_path: Path, workers: str, trouble: str
) -> None:
    """All was well when it was started; when its application is loaded, it is not any more."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys, threading\n"
        "class Trouble:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'holdfast.server.app':\n"
        f"            {trouble}\n"
        "sys.meta_path.insert(0, Trouble())\n"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    environment |= {"HOLDFAST_DATABASE_URL": url, "HOLDFAST_PORT": "0", "HOLDFAST_WORKERS": workers}
    environment |= {"PYTHONPATH": os.pathsep.join(filter(None, [str(tmp_path), environment.get("PYTHONPATH")]))}
    command = [sys.executable, "-m", "holdfast.cli", "serve", "--data-dir", str(tmp_path / "data")]
    outcome = subprocess.run(
        command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=2 * PATIENCE
    )
    assert outcome.stdout.startswith("Holdfast listens on"), "it was started"
    assert outcome.returncode == 1, outcome.stderr
    assert outcome.stderr.rstrip().splitlines()[-1].startswith("holdfast: ")
