"""Commands as bytes. Packed here: what a general client does for every argument costs more than the lock itself."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from .scripts import Script


def command(*words: bytes) -> bytes:
    """Any command."""
    return b"*%d\r\n%b" % (len(words), b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in words]))


@lru_cache(maxsize=8192)
def keys_of(name: str) -> bytes:
    """The three keys of a lock, as arguments. Its name has no braces, so all of them are in the slot of the first."""
    lock = name.encode()
    words = (lock, b"{%b}:grant" % lock, b"{%b}:queue" % lock)
    return b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in words])


class ScriptCall:
    """Calls of one script on one lock, always with so many arguments."""

    def __init__(self, script: Script, arguments: int) -> None:
        self.script = script
        self._head = b"*%d\r\n$7\r\nEVALSHA\r\n$40\r\n%b\r\n$1\r\n3\r\n" % (3 + 3 + arguments, script.sha)

    def __call__(self, name: str, *arguments: bytes) -> bytes:
        tail = b"".join([b"$%d\r\n%b\r\n" % (len(argument), argument) for argument in arguments])
        return self._head + keys_of(name) + tail


def load(scripts: Sequence[Script]) -> bytes:
    """Makes the server know the scripts."""
    return b"".join(command(b"SCRIPT", b"LOAD", script.source) for script in scripts)
