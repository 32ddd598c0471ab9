"""``holdfast token``: tokens made, shown once and revoked from the command line, while the server runs or does not."""

import hashlib
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import make_conninfo
from running import Running, event, wait_until

from holdfast.server.token_book import KNOWN_FOR
from holdfast.testing import Stopwatch

Db = psycopg.Connection[Any]
Ran = subprocess.CompletedProcess[str]


def holdfast(*arguments: str, cwd: Path, **environment: str) -> Ran:
    bare = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    command = [sys.executable, "-m", "holdfast.cli", *arguments]
    return subprocess.run(command, env=bare | environment, cwd=cwd, capture_output=True, text=True)


@pytest.fixture
def token(url: str, tmp_path: Path) -> Callable[..., Ran]:
    return lambda *arguments: holdfast("token", *arguments, cwd=tmp_path, HOLDFAST_DATABASE_URL=url)


def test_a_token_is_shown_once_and_good_for_what_it_was_made_for(server: Running, db: Db, token: Any) -> None:
    made = token("add", "--name", "prometheus", "--scope", "read", "--tenant", "shop")
    (secret,) = made.stdout.split()
    assert made.returncode == 0 and secret.startswith("hf_")
    with server.client(headers={"Authorization": f"Bearer {secret}"}) as client:
        assert client.get("/api/agents").json() == {"agents": []}
        assert client.post("/hook", json=event("Note")).status_code == 403
        assert 'tenant="shop"' in client.get("/metrics").text
    rows = db.execute("select digest, t::text from holdfast.token t where name = 'prometheus'").fetchall()
    assert [row[0] for row in rows] == [hashlib.sha256(secret.encode()).digest()]
    assert not any(secret in row[1] for row in rows)
    listed = token("list").stdout
    (line,) = (line for line in listed.splitlines() if "prometheus" in line)
    assert "shop" in line and "read" in line and secret not in listed
    assert "(token of the data folder)" in listed, "the server's own are listed, too"
    assert token("revoke", "prometheus").returncode == 0


def test_a_new_address_of_the_page_lets_one_browser_in(server: Running, token: Any) -> None:
    printed = token("page", "--tenant", "shop").stdout.strip()
    start, _, code = printed.partition("/?code=")
    assert start == "http://127.0.0.1:8765" and code.startswith("hf_")
    with server.client(headers={"Authorization": ""}) as browser:
        assert browser.get("/", params={"code": code}).status_code == 303
        assert browser.get("/").status_code == 200
        assert browser.get("/api/agents").json() == {"agents": []}, "it is of that tenant"
    with server.client(headers={"Authorization": ""}) as another:
        assert another.get("/", params={"code": code}).status_code == 401


def test_a_revoked_token_is_refused_by_a_running_server_within_the_stated_time(server: Running, token: Any) -> None:
    secret = token("add", "--name", "short-lived", "--scope", "hook,read").stdout.strip()
    with server.client(headers={"Authorization": f"Bearer {secret}"}) as client:
        assert client.get("/hook/status").status_code == 200
        revoked = token("revoke", "short-lived")
        watch = Stopwatch()
        assert f"within {KNOWN_FOR:g} s" in revoked.stdout
        wait_until(lambda: client.get("/hook/status").status_code == 401, "it is still good")
        assert watch.awake < KNOWN_FOR + 2
    assert "short-lived" not in token("list").stdout
    again = token("revoke", "short-lived")
    assert again.returncode == 1 and again.stderr.startswith("holdfast: there is no token")
    anew = token("add", "--name", "short-lived", "--scope", "hook")
    assert anew.returncode == 0 and anew.stdout.strip() != secret, "its name is free again"
    assert token("revoke", "short-lived").returncode == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--name", "x", "--scope", "everything"), "scope"),
        (("--name", "x", "--scope", ""), "scope"),
        (("--name", "", "--scope", "read"), "name"),
        (("--name", "a\x1b[2J", "--scope", "read"), "name"),
        (("--name", "x", "--scope", "read", "--tenant", " "), "tenant"),
        (("--name", "twice", "--scope", "read"), "already"),
    ],
)
def test_what_cannot_be_made_is_named(server: Running, token: Any, arguments: tuple[str, ...], said: str) -> None:
    token("add", "--name", "twice", "--scope", "read")
    refused = token("add", *arguments)
    assert refused.returncode == 1 and refused.stderr.startswith("holdfast: ") and said in refused.stderr
    assert refused.stdout == ""
    token("revoke", "twice")


def test_a_revoked_token_is_not_brought_back_by_the_file_that_it_is_in(
    start: Callable[..., Running], token: Any
) -> None:
    server = start()
    (line,) = (line for line in token("list").stdout.splitlines() if "(token of the data folder)" in line)
    assert token("revoke", line.split()[0]).returncode == 0, "by its id, as it has no name"
    assert server.terminate() == 0
    with pytest.raises(AssertionError, match="was revoked: delete the file"):
        start()
    (server.data / "token").unlink()
    with start().client() as client:
        assert client.get("/api/agents").status_code == 200


def test_with_an_embedded_database_it_works_while_the_server_runs_and_while_it_does_not(tmp_path: Path) -> None:
    data = tmp_path / "data"
    nothing = holdfast("token", "list", "--data-dir", str(data), cwd=tmp_path)
    assert nothing.returncode == 1 and "start holdfast serve first" in nothing.stderr
    assert not data.exists(), "nothing is made of a folder that was mistyped"
    with Running({}, data) as server:
        made = holdfast("token", "add", "--name", "a", "--scope", "read", "--data-dir", str(data), cwd=tmp_path)
        with server.client(headers={"Authorization": f"Bearer {made.stdout.strip()}"}) as client:
            assert client.get("/api/agents").status_code == 200
    revoked = holdfast("token", "revoke", "a", "--data-dir", str(data), cwd=tmp_path)
    assert revoked.returncode == 0, revoked.stderr
    assert not (data / "postgres" / "cluster" / "postmaster.pid").exists(), "it is stopped again"


def test_a_database_without_the_tables_is_told_and_left_as_it_is(holdfast_postgres_url: str, tmp_path: Path) -> None:
    name = f"empty_{uuid4().hex}"  # other tests have made the tables in the usual one
    empty = make_conninfo(holdfast_postgres_url, dbname=name)
    with psycopg.connect(holdfast_postgres_url, autocommit=True) as server:
        server.execute(f"create database {name}")
        try:
            before = holdfast("token", "list", "--url", empty, cwd=tmp_path)
            assert before.returncode == 1 and "holdfast db upgrade" in before.stderr
            with psycopg.connect(empty) as db:
                assert db.execute("select to_regclass('holdfast.token')").fetchone() == (None,)
        finally:
            server.execute(f"drop database {name} with (force)")


def test_a_database_user_who_may_not_and_a_name_that_is_none_are_told_so(url: str, db: Db, tmp_path: Path) -> None:
    db.execute("create role onlooker login; grant usage on schema holdfast to onlooker")
    db.execute("grant select on all tables in schema holdfast to onlooker")
    try:
        onlooker = f"postgresql://onlooker@/{db.info.dbname}?host={db.info.host}&port={db.info.port}"
        for arguments in (("add", "--name", "x", "--scope", "read"), ("revoke", "x")):
            refused = holdfast("token", *arguments, "--url", onlooker, cwd=tmp_path)
            assert refused.returncode == 1 and refused.stdout == ""
            assert refused.stderr == "holdfast: PostgreSQL: permission denied for table token\n"
    finally:
        db.execute("drop owned by onlooker; drop role onlooker")
    odd = holdfast("token", "revoke", os.fsdecode(b"\xff"), "--url", url, cwd=tmp_path)
    assert odd.returncode == 1 and odd.stderr.startswith("holdfast: there is no token")
