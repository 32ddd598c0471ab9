"""Reading an agent's transcript: only inside the allowed folder, only a regular file, only so much of it.

The path comes from outside. The file is written while we read, in a format that changes: what is torn or unknown is
passed over.
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any, Final, NamedTuple

from ..errors import LockError
from .payload import label
from .words import is_interrupt

MOST_BYTES: Final = 4 * 2**20
END_BYTES: Final = 2**18
"""For what must be at the very end."""


class Refused(LockError, ValueError):
    """The transcript's path is not one that may be read."""


class LastEntry(NamedTuple):
    """The last entry of the conversation itself, and what it says about the client."""

    said: str | None = None
    """By the agent. None if the user's words are the last, since the answer has yet to come."""
    model: str | None = None
    client_version: str | None = None
    git_branch: str | None = None


def last_entry(path: str, root: Path) -> LastEntry:
    """Raises ``Refused``, or ``OSError`` if it is not there."""
    for line in reversed(_last_lines(path, root, MOST_BYTES)):
        entry = _entry(line)
        if entry is None or entry.get("isSidechain") or entry.get("type") not in ("user", "assistant"):
            continue
        by_agent = entry["type"] == "assistant"
        message = entry.get("message")
        return LastEntry(
            said=_text_of(entry) if by_agent else None,
            model=label(message.get("model")) if by_agent and isinstance(message, dict) else None,
            client_version=label(entry.get("version")),
            git_branch=label(entry.get("gitBranch")),
        )
    return LastEntry()


class Interrupt(NamedTuple):
    id: str
    prompt_id: str
    text: str


def interrupt_at_the_end(path: str, root: Path) -> Interrupt | None:
    """The user's interrupt, if nothing was said after it. Raises as ``last_entry`` does."""
    for line in reversed(_last_lines(path, root, END_BYTES)):
        entry = _entry(line)
        if entry is None or entry.get("isSidechain") or entry.get("type") not in ("user", "assistant"):
            continue
        text, id_, prompt_id = _text_of(entry), entry.get("uuid"), entry.get("promptId")
        if entry["type"] == "user" and text and is_interrupt(text) and isinstance(id_, str):
            return Interrupt(id_, prompt_id, text) if isinstance(prompt_id, str) else None
        return None
    return None


def state_of(path: str, root: Path) -> tuple[int, int]:
    """Changes whenever the file does. Raises as ``last_entry`` does."""
    file = _open_inside(path, root)
    try:
        now = os.fstat(file)
    finally:
        os.close(file)
    return now.st_mtime_ns, now.st_size


def _text_of(entry: dict[str, Any]) -> str | None:
    message = entry.get("message")
    content = message.get("content") if isinstance(message, dict) else None
    if isinstance(content, str):
        return content
    blocks = content if isinstance(content, list) else []
    texts = [block.get("text") for block in blocks if isinstance(block, dict) and block.get("type") == "text"]
    return "\n".join(text for text in texts if isinstance(text, str)) or None


def _entry(line: bytes) -> dict[str, Any] | None:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return entry if isinstance(entry, dict) else None


def _last_lines(path: str, root: Path, most: int) -> list[bytes]:
    file = _open_inside(path, root)
    try:
        size = os.fstat(file).st_size
        begin = max(0, size - most)
        lines = os.pread(file, most, begin).split(b"\n")
    finally:
        os.close(file)
    return lines[1:] if begin else lines


def _open_inside(path: str, root: Path) -> int:
    """Opens step by step from the root, following no link: what is checked is what is opened."""
    *folders, name = _parts_below(path, root)
    at = os.open(os.path.realpath(root), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for folder in folders:
            below = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
            os.close(at)
            at = below
        # NONBLOCK: opening a FIFO would wait for a writer.
        file = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=at)
    except (NotADirectoryError, OSError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise Refused(f"{path!r} leads over a link, or to something that is no file") from error
    finally:
        os.close(at)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise Refused(f"{path!r} is not a regular file")
    return file


def _parts_below(path: str, root: Path) -> tuple[str, ...]:
    if "\0" not in path and ".." not in Path(path).parts:
        for base in (root, Path(os.path.realpath(root))):
            if Path(path).is_relative_to(base) and Path(path) != base:
                return Path(path).relative_to(base).parts
    raise Refused(f"{path!r} is outside the folder of transcripts")
