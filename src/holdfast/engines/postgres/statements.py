"""The statements of a package's ``statements.sql``, by their names."""

from __future__ import annotations

import re
from importlib.resources import files
from typing import Final


def read_statements(package: str) -> dict[str, bytes]:
    text = files(package).joinpath("statements.sql").read_text()
    _, *sections = re.split(r"^-- name: (\w+)\n", text, flags=re.MULTILINE)
    return {
        name: re.sub(r"^--.*\n", "", body, flags=re.MULTILINE).strip().encode()
        for name, body in zip(sections[::2], sections[1::2], strict=True)
    }


STATEMENTS: Final = read_statements(__package__)
