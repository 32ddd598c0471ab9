"""Where the shim, the installer and the server keep what they share."""

import os
from pathlib import Path
from typing import Final

DEFAULT_URL: Final = "http://127.0.0.1:8765"


def data_dir() -> Path:
    given = os.environ.get("HOLDFAST_DATA_DIR")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "holdfast"


def client_config_dir() -> Path:
    """Where the coding agent keeps its settings and transcripts."""
    return Path(os.environ.get("CLAUDE_CONFIG_DIR") or Path.home() / ".claude")


def spool_dir(data: Path, url: str) -> Path:
    """What one server did not take is not for another: a folder for each address."""
    from urllib.parse import quote, urlsplit

    return data / "spool" / quote(urlsplit(url).netloc.lower() or "nowhere", safe=":[]")
