"""The pytest fixtures: the servers the environment names, else embedded ones; and no cost for those who use neither."""

import subprocess
import sys
from pathlib import Path

from embedded_processes import environment, processes_naming

USES_BOTH = """
import psycopg, redis

def test_both_work(holdfast_postgres_url, holdfast_redis_url):
    with psycopg.connect(holdfast_postgres_url) as connection:
        assert connection.execute("show fsync").fetchone() == ("off",)
    with redis.Redis.from_url(holdfast_redis_url) as client:
        assert client.ping()
"""
TAKES_WHAT_IS_NAMED = """
import sys

def test_named(holdfast_postgres_url, holdfast_redis_url):
    assert (holdfast_postgres_url, holdfast_redis_url) == ("postgresql://named", "redis://named")
    assert "holdfast.embedded" not in sys.modules
"""


def run_pytest(folder: Path, test: str, **more_environment: str) -> None:
    (folder / "test_it.py").write_text(test)
    # Loaded by name, not by the installed entry point: the same with and without an installation.
    env = environment() | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"} | more_environment
    command = [sys.executable, "-m", "pytest", "-q", "-p", "holdfast.testing.fixtures", f"--basetemp={folder}/base"]
    result = subprocess.run([*command, "test_it.py"], cwd=folder, env=env, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_embedded_servers_are_started_and_gone_afterwards(tmp_path: Path) -> None:
    run_pytest(tmp_path, USES_BOTH, HOLDFAST_TEST_DATABASE_URL="", HOLDFAST_TEST_REDIS_URL="")
    assert list(processes_naming(str(tmp_path))) == []


def test_servers_named_by_the_environment_are_used_and_nothing_is_started(tmp_path: Path) -> None:
    named = {"HOLDFAST_TEST_DATABASE_URL": "postgresql://named", "HOLDFAST_TEST_REDIS_URL": "redis://named"}
    run_pytest(tmp_path, TAKES_WHAT_IS_NAMED, **named)
