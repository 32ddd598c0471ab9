"""A token in a file that nobody but its owner can read."""

import os
import stat
from pathlib import Path

from ..errors import LockError

_SHORTEST = 20


def new_token() -> str:
    import secrets

    return f"hf_{secrets.token_urlsafe(32)}"


def token_in(path: Path) -> str:
    """The token that is kept in this file; made by whoever is the first to ask."""
    try:
        return read_token(path)
    except FileNotFoundError:
        pass
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.urandom(8).hex()}")
    file = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(file, "w") as writing:
            writing.write(new_token() + "\n")
        try:
            os.link(beside, path)  # whole, or not at all; and never over another's
        except FileExistsError:
            pass
    finally:
        beside.unlink()
    return read_token(path)


def read_token(path: Path) -> str:
    with open(path) as file:
        if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
            raise LockError(f"{path} can be read by others: chmod 600 it, or delete it to have a new one made")
        token = file.read().strip()
    if len(token) < _SHORTEST:
        raise LockError(f"{path} holds no token: delete it to have one made")
    return token
