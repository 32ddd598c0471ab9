"""Which files, and which kernel name, stand for a key."""

from __future__ import annotations

import os
from functools import lru_cache
from hashlib import blake2b
from typing import Final, NamedTuple

from ...keys import Key

LOCK: Final = ".lock"


class Names(NamedTuple):
    """The names of one lock in one folder."""

    lock: str
    """The file whose flock is the lock."""
    guard: bytes
    """A socket name in the kernel, held with the lock: it cannot be unlinked."""


@lru_cache(maxsize=4096)
def file_name(key: Key) -> str:
    """A readable start, then a digest: safe on file systems that fold case or normalise, and never too long."""
    start = "".join(char if char.isascii() and (char.isalnum() or char in "-_.") else "_" for char in key.text)
    return f"{start[:80]}-{blake2b(key.text.encode(), digest_size=12).hexdigest()}"


def names(folder: str, folder_id: bytes, name: str) -> Names:
    digest = blake2b(name.encode(), key=folder_id, digest_size=16).hexdigest().encode()
    return Names(os.path.join(folder, name + LOCK), b"\0holdfast/" + digest)


def folder_id(folder: str) -> bytes:
    # By device and inode: two services may see different folders by one path (systemd's PrivateTmp).
    status = os.stat(folder)
    return b"%x:%x" % (status.st_dev, status.st_ino)
