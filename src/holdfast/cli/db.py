"""``holdfast db …``: Holdfast's own tables in a PostgreSQL database."""

from __future__ import annotations

import argparse
import os

from .. import schema
from ..errors import InvalidOption

URL_VARIABLE = "HOLDFAST_DATABASE_URL"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    upgrade = actions.add_parser("upgrade", help="create or bring up to date the tables of schema holdfast")
    upgrade.add_argument("--sql", action="store_true", help="print the SQL of all migrations instead of running them")
    current = actions.add_parser("current", help="say how far the database has come; 1 if an upgrade is due")
    for action in (upgrade, current):
        action.add_argument("--url", help=f"postgresql://… (default: {URL_VARIABLE})")


def run(given: argparse.Namespace) -> int:
    if given.action == "upgrade":
        return _print_sql() if given.sql else _upgrade(_url(given))
    return _current(_url(given))


def _upgrade(url: str) -> int:
    before = schema.upgrade(url)
    if before.up_to_date:
        print(f"schema holdfast is up to date ({before.newest})")
    else:
        print(f"schema holdfast upgraded: {before.found or 'nothing'} → {before.newest}")
    return 0


def _current(url: str) -> int:
    standing = schema.standing(url)
    if standing.up_to_date:
        print(f"{standing.newest} (up to date)")
        return 0
    print(f"{standing.found or 'nothing'}; the newest is {standing.newest}: run holdfast db upgrade")
    return 1


def _print_sql() -> int:
    print(schema.sql(), end="")
    return 0


def _url(given: argparse.Namespace) -> str:
    url = given.url or os.environ.get(URL_VARIABLE)
    if not url:
        raise InvalidOption(f"which database? give --url, or set {URL_VARIABLE}")
    return str(url)
