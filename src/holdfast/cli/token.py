"""``holdfast token add | list | revoke | page``: who may call the server. Whether it runs or not."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from .serve import check_installed


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    add = actions.add_parser("add", help="make one; it is shown this once")
    add.add_argument("--name", required=True, help="by which it can be revoked")
    add.add_argument("--scope", required=True, metavar="SCOPE,…", help="hook, read, admin")
    add.add_argument("--tenant", help="whose agents it is for (default: the server's own)")
    listed = actions.add_parser("list", help="those that are good, without the tokens themselves, which nobody knows")
    revoke = actions.add_parser("revoke", help="have servers refuse one, within seconds")
    revoke.add_argument("token", metavar="NAME", help="its name, or its id as `list` shows it")
    page = actions.add_parser("page", help="an address of the page that lets one more browser in, within the hour")
    page.add_argument("--tenant", help="whose agents it shows (default: the server's own)")
    for action in (add, listed, revoke, page):
        action.add_argument("--url", help="postgresql://… (default: HOLDFAST_DATABASE_URL, else the data folder's own)")
        action.add_argument("--data-dir", help="the server's data folder, with its embedded database")


def run(given: argparse.Namespace) -> int:
    check_installed()
    from ..server import place, token_book, tokens
    from ..server.serve import address_of
    from ..server.settings import load

    places: dict[str, Any] = {"database_url": given.url, "data_dir": given.data_dir}
    settings = load(**{name: value for name, value in places.items() if value is not None})
    with place.database(settings, must_exist=True) as url, token_book.opened(url) as book:
        if given.action == "add":
            scopes = [scope.strip() for scope in given.scope.split(",")]
            print(book.add(given.name, scopes, given.tenant or settings.tenant), flush=True)
            print("This is the only time that it is shown: the database knows its digest.", file=sys.stderr)
        elif given.action == "page":
            code = tokens.new_page_code(url, given.tenant or settings.tenant)
            print(f"{address_of(settings.host, settings.port)}/?code={code}")
        elif given.action == "revoke":
            gone = book.revoke(given.token)
            print(f"revoked: {gone}; running servers refuse it within {token_book.KNOWN_FOR:g} s")
        else:
            for entry in book.entries():
                print(entry)
    return 0
