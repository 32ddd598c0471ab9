"""The folder one server lives in: ``<data_dir>/postgres`` or ``<data_dir>/redis``, private to its owner.

A server runs as the owner of its home. Root makes the home for an unprivileged account (PostgreSQL refuses to run as
root); folders that were there before keep their owner and mode.
"""

import json
import os
import pwd
from dataclasses import dataclass
from pathlib import Path

from ._error import EmbeddedError
from ._share import LockFile, open_private_file

LOG = "server.log"
STATE = "state.json"


@dataclass(frozen=True)
class Home:
    """A server's folder and the account the server runs as."""

    path: Path
    uid: int
    gid: int

    def lock(self, name: str) -> LockFile:
        return LockFile(lambda: open_private_file(self.path / f"{name}.lock", owner=(self.uid, self.gid)))

    def new_log(self) -> int:
        """A fresh log for one run of the server; the one before is kept as ``server.log.1``."""
        log = self.path / LOG
        if log.exists():
            log.replace(log.with_name(f"{LOG}.1"))
        return open_private_file(log, owner=(self.uid, self.gid), extra_flags=os.O_APPEND)

    def log_tail(self, lines: int = 15) -> str:
        try:
            text = (self.path / LOG).read_text(errors="replace")
        except OSError:
            return ""
        return "\n".join(text.splitlines()[-lines:])

    def socket(self) -> str:
        """Where the server of the last start listens."""
        return read_socket(self.path)


def read_socket(home: Path) -> str:
    try:
        return str(json.loads((home / STATE).read_text())["socket"])
    except (OSError, ValueError, KeyError):
        return ""  # never started, or killed before it was written


def write_socket(home: Path, socket: str) -> None:
    new = home / f"{STATE}.new"
    new.write_text(json.dumps({"socket": socket}))
    new.replace(home / STATE)  # a reader sees the old or the new, never a part


def open_home(data_dir: str | os.PathLike[str], name: str, accounts: tuple[str, ...]) -> Home:
    """Find or make the home of the server called `name`; root makes it for the first of `accounts` that exists."""
    # The real path, so that everybody who reaches the folder, through links too, computes the same socket.
    data = Path(os.path.realpath(data_dir))
    home = data / name
    try:
        data.parent.mkdir(parents=True, exist_ok=True)
        if _make_private(data) and os.geteuid() == 0:
            _give_away(data, _account_for_root(data, accounts))
        _make_private(home)
        if os.geteuid() == 0 and home.stat().st_uid == 0:  # new, or its maker was killed before this line
            _give_away(home, _account_for_root(data, accounts))
        owner = home.stat()
    except OSError as error:
        raise EmbeddedError(f"cannot make the data folder {home}: {error}") from error
    if os.geteuid() not in (0, owner.st_uid):
        raise EmbeddedError(f"the data folder {home} belongs to {_name_of(owner.st_uid)}, not to you")
    return Home(home, owner.st_uid, _group_of(owner))


def _make_private(folder: Path) -> bool:
    try:
        folder.mkdir(mode=0o700)
    except FileExistsError:
        return False
    return True


def _give_away(folder: Path, account: tuple[int, int]) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        os.fchown(fd, *account)
    finally:
        os.close(fd)


def _account_for_root(data: Path, accounts: tuple[str, ...]) -> tuple[int, int]:
    owner = data.stat()
    if owner.st_uid != 0:  # somebody's folder: the server runs as that somebody
        return owner.st_uid, _group_of(owner)
    for name in accounts:
        try:
            account = pwd.getpwnam(name)
        except KeyError:
            continue
        return account.pw_uid, account.pw_gid
    raise EmbeddedError(f"started by root, a server runs as {' or '.join(accounts)}, but there is no such account")


def _group_of(owner: os.stat_result) -> int:
    try:
        return pwd.getpwuid(owner.st_uid).pw_gid
    except KeyError:
        return owner.st_gid


def _name_of(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"
