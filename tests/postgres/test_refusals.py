"""Places where locks would not be safe are refused, with what to do; and no secret is told on the way."""

import asyncio
import logging
import os
import pickle
import shutil
import signal
import socket
import subprocess
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from eyes import Server, place_to_listen, wait_until
from pg_proxy import Proxy, proxy

from holdfast import AsyncLocks, BackendUnavailable, InvalidOption, Locks, NotAcquired, Unsupported
from holdfast.testing import PATIENCE, Child, Stopwatch

PGBOUNCER = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin")
needs_pgbouncer = pytest.mark.skipif(PGBOUNCER is None, reason="there is no pgbouncer program here (Debian: pgbouncer)")


class PgBouncer:
    """A real one in front of the test's server. It will not run as root, and nobody else may open the server's socket:
    the proxy does that for it.
    """

    def __init__(self, folder: Path, server: Proxy, mode: str) -> None:
        assert PGBOUNCER is not None
        self.place = place_to_listen()
        config = folder / "pgbouncer.ini"
        config.write_text(
            f"[databases]\npostgres = host=127.0.0.1 port={server.port} user=postgres dbname=postgres\n"
            f"[pgbouncer]\nlisten_addr = {self.place[0]}\nlisten_port = {self.place[1]}\n"
            f"auth_type = any\npool_mode = {mode}\nunix_socket_dir =\nmax_client_conn = 50\ndefault_pool_size = 20\n"
        )
        self._process = subprocess.Popen(
            [PGBOUNCER, str(config)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            user="nobody" if os.geteuid() == 0 else None,
        )
        wait_until(self._listens, "pgbouncer did not start")

    def _listens(self) -> bool:
        if self._process.poll() is not None:
            assert self._process.stderr is not None
            raise AssertionError(self._process.stderr.read())
        try:
            socket.create_connection(self.place).close()
        except OSError:
            return False
        return True

    @property
    def url(self) -> str:
        address, port = self.place
        return f"postgresql://postgres@{address}:{port}/postgres"

    def stop(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        assert self._process.stderr is not None
        self._process.stderr.close()
        self._process.wait()


@pytest.fixture
def reachable() -> Iterator[Path]:
    """A folder that another account can read, too."""
    with tempfile.TemporaryDirectory(prefix="holdfast-pgbouncer-") as name:
        os.chmod(name, 0o755)
        yield Path(name)


@pytest.fixture(params=["transaction", "session"])
def pooled(request: pytest.FixtureRequest, reachable: Path, url: str) -> Iterator[PgBouncer]:
    with proxy(url) as between:
        pooler = PgBouncer(reachable, between, request.param)
        yield pooler
        pooler.stop()


@needs_pgbouncer
def test_a_pooler_is_refused_and_the_error_says_what_to_do(pooled: PgBouncer) -> None:
    with Locks.from_url(pooled.url) as locks:
        with pytest.raises(Unsupported, match="PostgreSQL's own address, or pooler='session'"):
            locks.hold(8, 1, wait=5).__enter__()
        with pytest.raises(Unsupported):  # nor later
            locks.try_hold(8, 1).__enter__()


@needs_pgbouncer
@pytest.mark.parametrize("pooled", ["session"], indirect=True)
def test_a_session_pooler_that_is_declared_works_and_excludes(pooled: PgBouncer, url: str, server: Server) -> None:
    child = Child(url)  # not through the pooler
    try:
        with Locks.from_url(pooled.url, pooler="session") as locks:
            with locks.hold("pooled"):
                assert child.ask("try", "pooled") == "busy"
            assert child.ask("hold", "pooled").startswith("held")
            with pytest.raises(NotAcquired):
                locks.hold("pooled", wait=0.2).__enter__()
            child.ask("release")
            with locks.hold("pooled", wait=PATIENCE):
                pass
    finally:
        child.kill()


@needs_pgbouncer
@pytest.mark.parametrize("pooled", ["session"], indirect=True)
def test_behind_a_session_pooler_an_abandoned_wait_is_cancelled(
    pooled: PgBouncer, db: psycopg.Connection[Any], server: Server
) -> None:
    """The process id that the driver was told is the pooler's invention."""
    db.execute("select pg_advisory_lock(8, 2)")

    async def main() -> None:
        async with AsyncLocks.from_url(pooled.url, pooler="session") as locks:
            task = asyncio.create_task(locks.hold(8, 2, wait=PATIENCE).__aenter__())
            await asyncio.to_thread(wait_until, lambda: server.waiting(2), "nobody stood in the server's queue")
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            watch = Stopwatch()
            await asyncio.to_thread(wait_until, lambda: not server.waiting(2), "the wait was not cancelled")
            assert watch.awake < 2

    asyncio.run(main())
    db.execute("select pg_advisory_unlock(8, 2)")


def test_a_standby_is_refused(own_server: Any, tmp_path: Path) -> None:
    """Its locks would exclude nobody on the primary."""
    from holdfast.embedded import start_postgres

    own_server.close()
    copy = tmp_path / "standby"
    subprocess.run(["cp", "-a", str(own_server.data_dir), str(copy)], check=True)
    for leftover in ("keeper", "users", "server", "start"):
        (copy / "postgres" / leftover).unlink(missing_ok=True)
    signal_file = copy / "postgres" / "cluster" / "standby.signal"
    signal_file.touch()
    shutil.chown(signal_file, signal_file.parent.owner(), signal_file.parent.group())
    with start_postgres(copy, options={"fsync": "off", "hot_standby": "on"}) as standby:
        with Locks.from_url(standby.url) as locks:
            with pytest.raises(Unsupported, match=r"standby.*primary's address"):
                locks.hold(8, 3, wait=5).__enter__()


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://me:s3cret@127.0.0.1:1/app",
        "postgresql://me:s3cret@no-such-host.invalid/app",
        "postgresql://me:s3cret@/app?host=/nowhere-at-all",
    ],
)
def test_a_server_that_cannot_be_reached_is_told_in_time_without_the_secret(
    address: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    with Locks.from_url(address) as locks:
        watch = Stopwatch()
        with pytest.raises(BackendUnavailable) as caught:
            locks.hold("a", wait=3).__enter__()
        assert watch.awake < 3.5
        assert "s3cret" not in told_by(caught.value) + repr(locks) + caplog.text


def told_by(error: BaseException) -> str:
    """All that an error shows, or takes along, of itself and of those before it."""
    shown = "".join(traceback.format_exception(error))
    before: BaseException | None = error
    while before is not None:
        shown += f"{before} {before!r} {before.args}"
        before = before.__cause__ or before.__context__
    return shown + repr(pickle.dumps(error))


@pytest.fixture
def with_password(own_server: Any) -> str:
    """The address of a server that asks for a password."""
    home = own_server.data_dir / "postgres"
    with psycopg.connect(own_server.url, autocommit=True) as admin:
        admin.execute("create role me login password 'r1ght'")
        with open(home / "pg_hba.conf", "a") as rules:
            rules.write("host all all 127.0.0.0/8 scram-sha-256\n")
        admin.execute("select pg_reload_conf()")
        place = admin.execute("select current_setting('listen_addresses') || ':' || current_setting('port')").fetchone()
        assert place is not None
        return f"{place[0]}/postgres"


@pytest.mark.parametrize("own_server", [{"listen_addresses": "some"}], indirect=True)
def test_a_wrong_password_is_told_without_it(with_password: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    with Locks.from_url(f"postgresql://me:s3cret@{with_password}") as locks:
        with pytest.raises(BackendUnavailable, match="password authentication failed") as caught:
            locks.hold("a", wait=5).__enter__()
        assert "s3cret" not in told_by(caught.value) + repr(locks) + caplog.text
    with Locks.from_url(f"postgresql://me:r1ght@{with_password}") as locks, locks.hold("a"):
        pass


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://me:s3%zzcret@host/db",
        "postgresql://me:s3cret@[::1/db",
        "postgresql://me:x@s3cret@host/db",
        "postgresql://me:s3cret/x@host/db",
        "postgresql://me:s3cret@host/db?no_such_option=1",
    ],
)
def test_a_mistake_in_the_address_is_told_without_the_secret(address: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        Locks.from_url(address)
    shown = told_by(caught.value)
    assert "s3" not in shown.replace(f"Locks.from_url({address!r})", "")


@pytest.mark.parametrize(
    "options",
    [
        {"max_connections": 0},
        {"max_connections": -1},
        {"max_connections": True},
        {"max_waiting": 0},
        {"max_waiting": 1.5},
        {"pooler": "x"},
        {"pooler": "transaction"},
        {"no_such_option": 1},
    ],
)
def test_bad_options_are_refused_before_anything_is_opened(url: str, options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(InvalidOption, match=name):
        Locks.from_url(url, **options)
