"""The command line: ``holdfast …``. One module per command; each is imported when it is called."""

from __future__ import annotations

import sys
from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> int:
    given = list(sys.argv[1:] if arguments is None else arguments)
    if given[:1] == ["hook"]:  # its start is waited for: before anything else is loaded
        from ..hooks.shim import main as deliver

        return deliver(given[1:])
    return _run(given)


def _run(arguments: Sequence[str]) -> int:
    import argparse

    from .. import __version__
    from ..errors import LockError

    parser = argparse.ArgumentParser(prog="holdfast", description="One writer at a time, everywhere.")
    parser.add_argument("--version", action="version", version=f"holdfast {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    demo = commands.add_parser("demo", help="the same race without and with a lock, in a few seconds")
    demo.add_argument("--processes", type=_count, default=4, metavar="N", help="how many write at once (default 4)")
    demo.add_argument("--updates", type=_count, default=100, metavar="N", help="how many each makes (default 100)")
    db_command = commands.add_parser("db", help="Holdfast's own tables in a PostgreSQL database")
    hooks_command = commands.add_parser("hooks", help="Holdfast's hooks in a coding agent's settings")
    commands.add_parser("hook", help="what those hooks run: delivers the event on its standard input")
    serve_command = commands.add_parser("serve", help="the server: hooks of coding agents, API, page")
    token_command = commands.add_parser("token", help="tokens of the server: make, list, revoke")
    schedule_command = commands.add_parser("schedule", help="scheduled actions in a PostgreSQL database")

    from . import db, hooks, schedule, serve, token

    db.add_arguments(db_command)
    serve.add_arguments(serve_command)
    hooks.add_arguments(hooks_command)
    token.add_arguments(token_command)
    schedule.add_arguments(schedule_command)
    given = parser.parse_args(arguments)
    try:
        if given.command == "db":
            return db.run(given)
        if given.command == "serve":
            return serve.run(given)
        if given.command == "token":
            return token.run(given)
        if given.command == "hooks":
            return hooks.run(given)
        if given.command == "schedule":
            return schedule.run(given)
        from .demo import run

        return run(given.processes, given.updates)
    except LockError as error:
        print(f"holdfast: {error}", file=sys.stderr)
        return 1


def _count(text: str) -> int:
    number = int(text)
    if not 1 <= number <= 1000:
        import argparse

        raise argparse.ArgumentTypeError(f"{number} is not between 1 and 1000")
    return number
