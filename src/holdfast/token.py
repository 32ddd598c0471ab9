"""The text by which a detached lock is taken up again, here or in another process. A secret: it gives the lock."""

from __future__ import annotations

from typing import NamedTuple

from .errors import InvalidOption
from .keys import Key, escape


class Token(NamedTuple):
    key: Key
    secret: str

    def __str__(self) -> str:
        return f"holdfast1:{escape(self.key.text)}:{self.secret}"

    @classmethod
    def parse(cls, text: str) -> Token:
        version, _, rest = text.partition(":") if isinstance(text, str) else ("", "", "")
        key, _, secret = rest.partition(":")
        if version != "holdfast1" or not secret:
            # The text itself is not shown: it may be a token of another version.
            raise InvalidOption("token: this is not a token that detach() gave")
        plain = key.replace("%3A", ":").replace("%25", "%")
        return cls(Key.parse(plain), secret)
