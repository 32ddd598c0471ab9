"""``holdfast serve``: the server."""

from __future__ import annotations

import argparse
import os
from importlib.util import find_spec

from ..errors import MissingExtra

_NEEDS = (
    "fastapi",
    "uvicorn",
    "pydantic_settings",
    "sqlalchemy",
    "greenlet",
    "alembic",
    "psycopg",
    "httpx",
    "prometheus_client",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", help="where to listen (default 127.0.0.1)")
    parser.add_argument("--port", help="(default 8765; 0: any that is free)")
    parser.add_argument("--workers", help="processes (default 1)")
    parser.add_argument("--data-dir", help="tokens, and the embedded server's data")


def check_installed() -> None:
    missing = [name for name in _NEEDS if find_spec(name) is None]
    if missing:
        raise MissingExtra(f"the server needs {', '.join(missing)}: pip install 'holdfast[server]'")


def run(given: argparse.Namespace) -> int:
    check_installed()
    for name in ("host", "port", "workers", "data_dir"):
        if getattr(given, name) is not None:
            os.environ[f"HOLDFAST_{name.upper()}"] = getattr(given, name)  # for the workers, too
    from ..server.serve import serve
    from ..server.settings import load

    return serve(load())
