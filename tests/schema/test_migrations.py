"""Holdfast's tables come into a real database: once, whole, by whoever is first."""

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

from holdfast import BackendUnavailable, Unsupported, schema
from holdfast.cli import main
from holdfast.schema import migrations
from holdfast.testing import PATIENCE


@pytest.fixture
def url(holdfast_postgres_url: str) -> Iterator[str]:
    """A database with nothing in it."""
    name = f"fresh_{uuid4().hex}"
    with psycopg.connect(holdfast_postgres_url, autocommit=True) as server:
        server.execute(f"create database {name}")
        yield make_conninfo(holdfast_postgres_url, dbname=name)
        server.execute(f"drop database {name} with (force)")


@pytest.fixture
def db(url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(url, autocommit=True) as connection:
        yield connection


def tables(db: psycopg.Connection[Any]) -> set[str]:
    rows = db.execute("select relname from pg_class where relnamespace = to_regnamespace('holdfast') and relkind = 'r'")
    return {str(name) for (name,) in rows}


def test_an_upgrade_makes_what_is_missing_and_a_second_one_finds_it_done(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["db", "current", "--url", url]) == 1
    assert "nothing" in capsys.readouterr().out
    assert main(["db", "upgrade", "--url", url]) == 0
    assert "nothing →" in capsys.readouterr().out
    assert main(["db", "upgrade", "--url", url]) == 0
    assert "is up to date" in capsys.readouterr().out
    assert main(["db", "current", "--url", url]) == 0
    assert "(up to date)" in capsys.readouterr().out


def test_the_address_may_come_from_the_environment(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_DATABASE_URL", url)
    assert main(["db", "upgrade"]) == 0
    assert schema.standing(url).up_to_date


def test_everything_is_in_schema_holdfast_and_nothing_beside_it(url: str, db: psycopg.Connection[Any]) -> None:
    schema.upgrade(url)
    outside = db.execute(
        "select nspname, relname from pg_class join pg_namespace n on n.oid = relnamespace "
        "where nspname not in ('holdfast', 'pg_catalog', 'information_schema', 'pg_toast')"
    ).fetchall()
    assert outside == []
    assert "migrations" in tables(db)


def test_fences_grow_from_session_to_session(url: str, db: psycopg.Connection[Any]) -> None:
    schema.upgrade(url)
    fences = []
    with psycopg.connect(url, autocommit=True) as other:
        for _ in range(3):
            fences += [session.execute("select holdfast.next_fence()").fetchone() for session in (db, other)]
    assert fences == sorted(fences) and len(set(fences)) == 6


def test_of_several_upgrades_at_once_one_does_it_and_all_find_it_done(url: str) -> None:
    command = [sys.executable, "-m", "holdfast.cli", "db", "upgrade"]
    environment = {**os.environ, "HOLDFAST_DATABASE_URL": url}
    upgrades = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(4)]
    said = [upgrade.communicate(timeout=3 * PATIENCE)[0] for upgrade in upgrades]
    assert [upgrade.returncode for upgrade in upgrades] == [0] * 4
    assert sum("upgraded" in line for line in said) == 1
    assert sum("is up to date" in line for line in said) == 3


def test_an_upgrade_does_not_wait_inside_the_server_nor_for_ever(url: str, db: psycopg.Connection[Any]) -> None:
    with db.transaction():
        db.execute(f"select pg_advisory_xact_lock({migrations._LOCK})")
        with pytest.raises(BackendUnavailable, match="another upgrade"):
            schema.upgrade(url, wait=0.3)
        waiting = db.execute("select count(*) from pg_locks where locktype = 'advisory' and not granted").fetchone()
        assert waiting == (0,)
    schema.upgrade(url)


def test_an_upgrade_that_fails_half_way_leaves_nothing(url: str, db: psycopg.Connection[Any]) -> None:
    db.execute("create schema holdfast; create sequence holdfast.fence")
    with pytest.raises(BackendUnavailable, match="already exists"):
        schema.upgrade(url)
    assert tables(db) == set()
    db.execute("drop sequence holdfast.fence")
    schema.upgrade(url)


def test_a_schema_that_a_dba_made_is_enough(url: str, db: psycopg.Connection[Any]) -> None:
    role = f"limited_{uuid4().hex}"
    db.execute(f"create role {role} login; create schema holdfast authorization {role}")
    try:
        schema.upgrade(make_conninfo(url, user=role))
        assert schema.standing(url).up_to_date
    finally:
        db.execute(f"drop owned by {role} cascade; drop role {role}")


def test_the_printed_sql_does_what_the_upgrade_does(
    url: str, db: psycopg.Connection[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["db", "upgrade", "--sql"]) == 0
    db.execute(capsys.readouterr().out)
    assert schema.standing(url).up_to_date


def test_a_newer_schema_is_refused_and_left_alone(url: str, db: psycopg.Connection[Any]) -> None:
    schema.upgrade(url)
    db.execute("update holdfast.migrations set version_num = '999'")
    for action in (schema.upgrade, schema.standing):
        with pytest.raises(Unsupported, match="newer"):
            action(url)


@pytest.mark.parametrize("action", [["upgrade"], ["current"]])
@pytest.mark.parametrize(
    "url",
    [
        "postgresql://app:s3cret@127.0.0.1:1/app",
        "postgresql://app:s3@cret@127.0.0.1:1/app",
        "postgresql://app:pass word s3cret@127.0.0.1:1/app?s3cret=1",
    ],
)
def test_no_password_is_ever_shown(action: list[str], url: str) -> None:
    command = [sys.executable, "-m", "holdfast.cli", "db", *action]
    environment = {**os.environ, "HOLDFAST_DATABASE_URL": url}
    outcome = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE)
    assert outcome.returncode == 1
    assert outcome.stderr.startswith("holdfast: ")
    assert "cret" not in outcome.stderr + outcome.stdout


def test_what_is_missing_is_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HOLDFAST_DATABASE_URL", raising=False)
    assert main(["db", "upgrade"]) == 1
    assert "--url" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "alembic", None)
    monkeypatch.setattr(migrations, "find_spec", lambda name: None if name == "alembic" else object())
    assert main(["db", "upgrade", "--sql"]) == 1
    assert "alembic: pip install 'holdfast[db]'" in capsys.readouterr().err
