"""An embedded PostgreSQL: reachable through its socket only, by the owner of its folder and root only."""

import contextlib
import os
import pwd
import shutil
import signal
import socket as sockets
import struct
import tempfile
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import quote

from . import server
from ._error import EmbeddedError
from ._programs import postgres_folder
from ._recipe import Workbench
from .server import Server

_SETTINGS = {
    "listen_addresses": "",
    "port": "5432",
    "max_connections": "200",
    "shared_buffers": "64MB",
    "unix_socket_permissions": "0700",
    # Shared memory files in the cluster: nothing of a killed server stays in /dev/shm, and a container's usually tiny
    # /dev/shm does not matter.
    "dynamic_shared_memory_type": "mmap",
    "cluster_name": "holdfast",
}
_FIXED_SETTINGS = {"unix_socket_directories", "data_directory"}
_NEW_CLUSTER = "new-cluster-"
# Linux gives out no process id above 2^22, so no process can ever have this one.
_NOBODYS_PID = 2**31 - 1
# "Not now" answers: going down by an administrator, after a crash, or not up yet.
_NOT_TAKING_WORK = {b"57P01", b"57P02", b"57P03"}


def start_postgres(
    data_dir: str | os.PathLike[str], *, options: Mapping[str, str] | None = None, wait: float = 60.0
) -> Server:
    """Join the PostgreSQL of `data_dir`, or start it (making the folder and the cluster if need be).

    `options` are server settings such as ``{"fsync": "off"}``. They count only if this call really starts the server;
    a server that already runs keeps the settings it was started with.
    """
    return server.start(RECIPE, data_dir, options or {}, wait)


class _Postgres:
    name = "postgres"
    accounts = ("postgres", "nobody")
    stop_signals = (signal.SIGINT, signal.SIGQUIT)  # fast shutdown; then immediate

    def program(self, home: Path) -> Path:
        version_file = home / "cluster/PG_VERSION"
        return postgres_folder(version_file.read_text().strip() if version_file.exists() else None)

    def socket_name(self, options: Mapping[str, str]) -> str:
        settings = _with_options(options)
        for name in _FIXED_SETTINGS & settings.keys():
            raise ValueError(f"{name} is given by the data folder and cannot be an option")
        return f".s.PGSQL.{settings['port']}"

    def command(self, bench: Workbench) -> list[str]:
        settings = _with_options(bench.order.options)
        cluster = bench.home / "cluster"
        if not cluster.exists():
            _make_cluster(bench, cluster, sync=settings.get("fsync", "on") == "on")
        _write_access_rules(bench.home, int((cluster / "PG_VERSION").read_text()), settings)
        _forget_killed_server(cluster, bench.socket)
        settings = {
            "hba_file": str(bench.home / "pg_hba.conf"),
            "ident_file": str(bench.home / "pg_ident.conf"),
            "unix_socket_directories": _list_element(os.path.dirname(bench.socket)),
        } | settings
        command = [f"{bench.order.program}/postgres", "-D", str(cluster)]
        for name, value in settings.items():
            command += ["-c", f"{name}={value}"]
        return command

    def answers(self, socket: str, patience: float) -> bool:
        try:
            with sockets.socket(sockets.AF_UNIX) as connection:
                connection.settimeout(max(patience, 0.001))  # zero would mean: do not wait at all
                connection.connect(socket)
                return _takes_work(connection)
        except (OSError, EOFError):
            return False

    def url(self, socket: str) -> str:
        folder, name = os.path.split(socket)
        port = name.rpartition(".")[2]
        suffix = "" if port == _SETTINGS["port"] else f"&port={port}"
        return f"postgresql://postgres@/postgres?host={quote(os.fsencode(folder), safe='')}{suffix}"


RECIPE = _Postgres()


def _with_options(options: Mapping[str, str]) -> dict[str, str]:
    # PostgreSQL itself takes Max-Connections for max_connections; so that an option replaces our setting, we do too.
    return _SETTINGS | {name.lower().replace("-", "_"): value for name, value in options.items()}


def _make_cluster(bench: Workbench, cluster: Path, *, sync: bool) -> None:
    """Make the cluster beside its place and move it there when complete: a kill -9 on the way leaves no half one."""
    for leftover in bench.home.glob(f"{_NEW_CLUSTER}*"):
        shutil.rmtree(leftover)
    _require_account_name()
    bench.say(f"initialising a new PostgreSQL cluster in {cluster}")
    new = Path(tempfile.mkdtemp(prefix=_NEW_CLUSTER, dir=bench.home))
    command = [f"{bench.order.program}/initdb", "-D", str(new), "--username=postgres", "--encoding=UTF8", "--locale=C"]
    command += ["--auth-local=peer", "--auth-host=reject"]
    if not sync:
        command.append("--no-sync")
    code = bench.run(command).returncode
    if code != 0:
        shutil.rmtree(new, ignore_errors=True)
        raise EmbeddedError(f"initdb ended with code {code}")
    new.rename(cluster)
    if sync:
        _sync_folder(bench.home)


def _require_account_name() -> None:
    try:
        pwd.getpwuid(os.geteuid())
    except KeyError as error:
        raise EmbeddedError(
            f"uid {os.geteuid()} has no name in the passwd database, which PostgreSQL's initdb needs"
        ) from error


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _write_access_rules(home: Path, version: int, settings: Mapping[str, str]) -> None:
    """Let the folder's owner and root in as any role, and nobody else.

    The names are those the kernel reports for the other end of the socket. Before version 16 a map cannot say "any
    role"; there the modes do it alone: socket and folder are 0700, so nobody but those two can connect at all.
    """
    names = sorted({pwd.getpwuid(uid).pw_name for uid in (os.geteuid(), 0)})
    rule, map_lines = "peer map=holdfast", [f'holdfast "{name}" all\n' for name in names]
    if version < 16:
        rule, map_lines = "trust", []
        if settings["unix_socket_permissions"] != _SETTINGS["unix_socket_permissions"]:
            raise EmbeddedError("before PostgreSQL 16 unix_socket_permissions must stay 0700: it is all that guards it")
    (home / "pg_hba.conf").write_text(f"# Written anew at every start.\nlocal all all {rule}\n")
    (home / "pg_ident.conf").write_text("# Written anew at every start.\n" + "".join(map_lines))


def _forget_killed_server(cluster: Path, socket: str) -> None:
    """Make sure that no process id noted by a killed server counts. We hold server.lock: none of its processes lives.

    PostgreSQL takes the noted process for a running server if any process of this account has that id by now. The
    socket's note can go. ``postmaster.pid`` stays, with an id that no process has: it also names the old server's
    shared memory, by which PostgreSQL removes that, and refuses to start beside a server that somebody started by hand.
    """
    for leftover in (socket, f"{socket}.lock"):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(leftover)
    note = cluster / "postmaster.pid"
    try:
        first, *others = note.read_text(errors="surrogateescape").splitlines(keepends=True)
    except FileNotFoundError:
        return
    except ValueError:  # empty: killed between creating and writing it; PostgreSQL would refuse it
        note.unlink()
        return
    del first
    new = note.with_name("postmaster.pid.new")
    new.write_text("".join([f"{_NOBODYS_PID}\n", *others]), errors="surrogateescape")
    new.replace(note)


def _list_element(text: str) -> str:
    return '"' + text.replace('"', '""') + '"'


def _takes_work(connection: sockets.socket) -> bool:
    """Log in as a client would and see how far it gets (PostgreSQL's protocol 3.0)."""
    body = struct.pack("!i", 3 << 16) + b"user\0postgres\0database\0postgres\0\0"
    connection.sendall(struct.pack("!i", len(body) + 4) + body)
    while True:
        kind, length = struct.unpack("!ci", _exactly(connection, 5))
        content = _exactly(connection, length - 4)
        if kind == b"E":
            # Fields: a letter, text, zero. Any refusal but "not now", such as "too many clients", shows it works.
            state = next((field[1:] for field in content.split(b"\0") if field[:1] == b"C"), b"")
            return state not in _NOT_TAKING_WORK
        if kind == b"Z" or (kind == b"R" and content[:4] != b"\0\0\0\0"):  # ready for a query; or asks for a password
            connection.sendall(b"X\0\0\0\4")  # a proper good-bye, or the server's log fills with complaints
            return True


def _exactly(connection: sockets.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        chunk = connection.recv(size - len(received))
        if not chunk:
            raise EOFError
        received += chunk
    return received
