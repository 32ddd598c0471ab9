"""The Lua scripts: one file each, with ``common.lua`` in front of those that work on a lock."""

from __future__ import annotations

from hashlib import sha1
from importlib.resources import files
from typing import Final


class Script:
    """A script, and the name by which a server that has seen it knows it."""

    def __init__(self, name: str, *, common: bool = True) -> None:
        folder = files(__package__)
        parts = ([folder / "common.lua"] if common else []) + [folder / f"{name}.lua"]
        self.name = name
        self.source = "\n".join(part.read_text(encoding="utf-8") for part in parts).encode()
        self.sha = sha1(self.source, usedforsecurity=False).hexdigest().encode()


TAKE: Final = Script("take")
RELEASE: Final = Script("release")
EXTEND: Final = Script("extend")
DETACH: Final = Script("detach")
ROTATE: Final = Script("rotate")
EVICT: Final = Script("evict")
LOOK: Final = Script("look")
IDENTIFY: Final = Script("identify", common=False)
ALL: Final = (TAKE, RELEASE, EXTEND, DETACH, ROTATE, EVICT, LOOK)
