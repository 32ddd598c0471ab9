"""Which programs are run: those of the wheels, or others by choice; and what is said when there are none."""

import importlib.util
from pathlib import Path

import pytest
from embedded_processes import FAST, Stage

from holdfast import MissingExtra, embedded
from holdfast.embedded import _programs

OTHER_POSTGRES = sorted(Path("/usr/lib/postgresql").glob("*/bin"))


@pytest.mark.parametrize("folder", OTHER_POSTGRES, ids=lambda folder: folder.parent.name)
def test_a_named_postgres_is_used_instead_of_the_wheel(
    bare_stage: Stage, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import psycopg

    monkeypatch.setenv("HOLDFAST_POSTGRES_BIN", str(folder))
    with embedded.start_postgres(bare_stage.folder, options=FAST["postgres"]) as server:
        with psycopg.connect(server.url) as connection:
            assert connection.info.server_version // 10000 == int(folder.parent.name)
            connection.execute("create role someone login")
        with psycopg.connect(server.url, user="someone") as connection:
            assert connection.execute("select current_user").fetchone() == ("someone",)


def test_a_cluster_is_run_by_the_version_that_made_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for version in (16, 18):
        program = tmp_path / f"pginstall{version}/bin/postgres"
        program.parent.mkdir(parents=True)
        program.write_text(f"#!/bin/sh\necho 'postgres (PostgreSQL) {version}.1'\n")
        program.chmod(0o755)
    monkeypatch.delenv("HOLDFAST_POSTGRES_BIN", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(_programs, "_wheel_folder", lambda package: tmp_path)
    assert _programs.postgres_folder(None) == tmp_path / "pginstall18/bin"
    assert _programs.postgres_folder("16") == tmp_path / "pginstall16/bin"
    with pytest.raises(embedded.EmbeddedError, match="belongs to PostgreSQL 17, but only 16, 18 was found"):
        _programs.postgres_folder("17")


def test_without_any_program_the_message_says_what_to_install(
    bare_stage: Stage, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOLDFAST_POSTGRES_BIN", raising=False)
    monkeypatch.delenv("HOLDFAST_REDIS_SERVER", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    start = {"postgres": embedded.start_postgres, "redis": embedded.start_redis}[kind]
    with pytest.raises(MissingExtra, match=r"pip install 'holdfast\[embedded\]'"):
        start(bare_stage.folder)


def test_options_that_would_move_the_server_away_are_refused(bare_stage: Stage) -> None:
    with pytest.raises(ValueError, match="unix_socket_directories"):
        embedded.start_postgres(bare_stage.folder, options={"Unix-Socket-Directories": "/tmp"})
    with pytest.raises(ValueError, match="daemonize"):
        embedded.start_redis(bare_stage.folder, options={"daemonize": "yes"})
    assert not bare_stage.folder.exists()


def test_options_replace_the_defaults(bare_stage: Stage) -> None:
    import redis

    options = {"appendonly": "no", "save": "", "requirepass": "secret"}
    with embedded.start_redis(bare_stage.folder, options=options) as server:
        with redis.Redis.from_url(server.url, password="secret") as client:
            assert client.config_get("appendonly") == {"appendonly": "no"}
            assert client.config_get("save") == {"save": ""}
