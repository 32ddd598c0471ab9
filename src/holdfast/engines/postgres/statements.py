"""The statements of ``statements.sql`` by their names."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Final


def _read() -> dict[str, bytes]:
    text = files(__package__).joinpath("statements.sql").read_text()
    _, *sections = re.split(r"^-- name: (\w+)\n", text, flags=re.MULTILINE)
    return {
        name: re.sub(r"^--.*\n", "", body, flags=re.MULTILINE).strip().encode()
        for name, body in zip(sections[::2], sections[1::2], strict=True)
    }


STATEMENTS: Final = _read()
