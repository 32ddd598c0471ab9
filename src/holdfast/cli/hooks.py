"""``holdfast hooks install | uninstall | status``: Holdfast's hooks in a coding agent's settings."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path
from shlex import quote

from ..hooks import entries
from ..hooks.folders import DEFAULT_URL, client_config_dir, data_dir
from ..hooks.settings_file import SettingsFile, may_be_committed
from ..hooks.token_file import token_in


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    install = actions.add_parser("install", help="put them in; what is there of others stays")
    install.add_argument("--url", default=DEFAULT_URL, help=f"where the server is (default {DEFAULT_URL})")
    install.add_argument(
        "--by-command", action="store_true", help="every event, not by HTTP: what the server does not take is kept"
    )
    uninstall = actions.add_parser("uninstall", help="take out what install has put in")
    status = actions.add_parser("status", help="say whether they are in; 1 if not")
    for action in (install, uninstall, status):
        action.add_argument("--project", metavar="DIR", help="in this project's own settings, not the user's")


def run(given: argparse.Namespace) -> int:
    path = settings_path(given.project)
    if given.action == "install":
        return _install(path, given.url, by_command=given.by_command)
    return _uninstall(path) if given.action == "uninstall" else _status(path)


def settings_path(project: str | None) -> Path:
    if project is None:
        return client_config_dir() / "settings.json"
    return Path(project).resolve() / ".claude" / "settings.local.json"


def _install(path: Path, url: str, *, by_command: bool) -> int:
    file = SettingsFile(path)
    public = may_be_committed(file.path)
    token = None if public or by_command else token_in(data_dir() / "hook-token")
    changed = file.change(
        lambda before: entries.installed(before, url=url, token=token, shim=shim_command()), private=token is not None
    )
    print(f"hooks {'installed' if changed else 'are installed already'}: {file.path} → {url}")
    if public:
        print("git may see this file, so no token is in it: every event goes by the command `holdfast hook`")
    return 0


def _uninstall(path: Path) -> int:
    file = SettingsFile(path)
    if not entries.found(file.read()):
        print(f"no hooks of Holdfast in {file.path}")
        return 0
    file.change(entries.removed, private=False)
    print(f"hooks taken out of {file.path}")
    return 0


def _status(path: Path) -> int:
    file = SettingsFile(path)
    there = entries.found(file.read())
    for event in entries.EVENTS:
        print(f"{event:<18} {there.get(event, '–')}")
    missing = set(entries.EVENTS) - there.keys()
    print(f"{file.path}: {'installed' if not missing else f'{len(missing)} of {len(entries.EVENTS)} missing'}")
    return 1 if missing else 0


def shim_command() -> str:
    """How the agent is to call us, wherever it runs: by the full path, with the folder that the token is in."""
    program = Path(sys.argv[0]).resolve() if sys.argv[0].endswith("holdfast") else None
    found = str(program) if program and os.access(program, os.X_OK) else shutil.which("holdfast")
    start = quote(found) if found else f"{quote(sys.executable)} -m holdfast.cli"
    return f"{start} hook --data-dir {quote(str(data_dir().absolute()))}"
