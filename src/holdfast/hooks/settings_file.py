"""A client's settings file: read, changed and written as a whole, by one at a time, with the first version kept."""

from __future__ import annotations

import fcntl
import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from ..errors import LockError

BACKUP: Final = ".before-holdfast"

Change = Callable[[dict[str, Any]], dict[str, Any]]


class SettingsFile:
    def __init__(self, path: Path) -> None:
        # Many keep their settings elsewhere and link to them. The link stays.
        self.path = Path(os.path.realpath(path))

    def read(self) -> dict[str, Any]:
        return _parsed(self._text(), self.path)

    def change(self, change: Change, *, private: bool) -> bool:
        """Writes what ``change`` makes of the settings. Whether that was anything new. ``private``: it has a secret."""
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)  # around reading and writing both
            text = self._text()
            before = _parsed(text, self.path)
            after = change(before)
            if after == before and text is not None:
                return False
            self._back_up(text)
            self._write(_formatted(after, text), private=private)
            os.fsync(folder)
            return True
        finally:
            os.close(folder)

    def _text(self) -> str | None:
        try:
            return self.path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return None

    def _back_up(self, text: str | None) -> None:
        backup = self.path.with_name(self.path.name + BACKUP)
        if text is not None and not backup.exists():
            with open(os.open(backup, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
                file.write(text)

    def _write(self, text: str, *, private: bool) -> None:
        mode = self.path.stat().st_mode & 0o777 if self.path.exists() else 0o600
        new = self.path.with_name(f".{self.path.name}.{os.getpid()}.new")
        with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
            os.fchmod(file.fileno(), mode & 0o700 if private else mode)
        new.rename(self.path)


def may_be_committed(path: Path) -> bool:
    """Whether git tracks this file, or would with the next ``git add``: a secret has no place in it then."""
    folder = path.parent
    while not folder.exists():
        folder = folder.parent

    def git(*arguments: str) -> int:
        command = ["git", "-C", str(folder), *arguments]
        return subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode

    try:
        if git("rev-parse", "--is-inside-work-tree") != 0:
            return False
        tracked = git("ls-files", "--error-unmatch", "--", str(path)) == 0
        return tracked or git("check-ignore", "--quiet", "--", str(path)) != 0
    except FileNotFoundError:  # no git here; there may be elsewhere
        return any((each / ".git").exists() for each in (folder, *folder.parents))


def _parsed(text: str | None, path: Path) -> dict[str, Any]:
    if text is None or not text.strip():
        return {}
    try:
        settings = json.loads(text)
    except ValueError as error:
        raise LockError(f"{path} is not JSON, and is left as it is: {error}") from None
    if not isinstance(settings, dict) or not isinstance(settings.get("hooks", {}), dict):
        raise LockError(f"{path} does not look like settings, and is left as it is")
    return settings


def _formatted(settings: dict[str, Any], before: str | None) -> str:
    """In the style of what was there."""
    indent = re.search(r"^([ \t]+)\"", before or "", re.MULTILINE)
    end = "" if before and not before.endswith("\n") else "\n"
    return json.dumps(settings, indent=indent[1] if indent else 2, ensure_ascii=False) + end
