"""What is locked, and how it is written down. Pure, and frozen: see docs/wire-format.md.

Two versions of Holdfast in one roll-out must agree on every form of a key, or there are two holders. The golden
vectors in tests/golden/keys.json hold these functions to what the first release did.
"""

from __future__ import annotations

import re
from enum import IntEnum
from functools import lru_cache
from hashlib import blake2b
from typing import Final, NamedTuple, TypeAlias

from .errors import InvalidKey

MAX_TEXT_BYTES: Final = 512

_INT32: Final = 2**31
_INT64: Final = 2**63


class LockNamespace(IntEnum):
    """Holdfast's own namespaces. Yours can be any ``IntEnum`` or int; the numbers 1 to 99 are kept for Holdfast."""

    AGENT = 1
    SCHEDULER = 2


class PgKey(NamedTuple):
    """A key as PostgreSQL's advisory locks take it: two 32-bit ints, or (with ``classid`` None) one bigint."""

    classid: int | None
    objid: int


KeyLike: TypeAlias = "Key | str | tuple[int, int]"
"""What callers may name a lock by: a string, or a namespace and an entity id."""


class Key:
    """The name of one lock: a string, or a namespace and an entity id, inside a space. Immutable."""

    __slots__ = ("_hash", "_pg", "entity", "name", "namespace", "prefix", "space", "text")

    space: str
    """Keeps deployments that share a server apart; empty for the default."""
    name: str | None
    """The string, of a string key; of a prefixed one, what follows the prefix, as it stands."""
    namespace: int | None
    entity: int | None
    prefix: str | None
    """Of a prefixed key, whose text form is ``prefix:name``."""
    text: str
    """The text form: ``ns:1:42`` or ``key:nightly-report``, in a space ``in:staging:ns:1:42``."""
    _hash: int
    _pg: PgKey | None

    def __init__(
        self, space: str, name: str | None, namespace: int | None, entity: int | None, prefix: str | None = None
    ) -> None:
        put = object.__setattr__
        put(self, "space", space)
        put(self, "name", name)
        put(self, "namespace", namespace)
        put(self, "entity", entity)
        put(self, "prefix", prefix)
        if prefix is not None:
            text = f"{prefix}:{name}"
        else:
            text = f"key:{escape(name)}" if name is not None else f"ns:{namespace:d}:{entity:d}"
        put(self, "text", f"in:{escape(space)}:{text}" if space else text)
        put(self, "_hash", hash(self.text))
        put(self, "_pg", None)

    @classmethod
    def of(cls, *parts: object, space: str = "") -> Key:
        """The key named by ``parts``: one string, one ``Key``, or a namespace and an entity id."""
        return key_of(space, parts)

    @classmethod
    def prefixed(cls, prefix: str, name: str, *, space: str = "") -> Key:
        """The key whose text form is ``prefix:name`` as it stands, for names that others agree on too.

        ``name`` is one or more parts with ``:`` between, each written as ``escape`` does.
        """
        return key_of(space, (cls("", _written(name), None, None, checked_prefix(prefix)),))

    @classmethod
    def parse(cls, text: str) -> Key:
        """The key whose text form this is; the inverse of ``key.text``."""
        space, rest = "", text
        if rest.startswith("in:"):
            encoded_space, _, rest = rest[3:].partition(":")
            space = _unescape(encoded_space, text)
        kind, _, body = rest.partition(":")
        if kind == "key":
            key = cls.of(_unescape(body, text), space=space)
        elif kind == "ns":
            namespace, _, entity = body.partition(":")
            try:
                key = cls.of(int(namespace), int(entity), space=space)
            except ValueError as error:
                raise _not_a_text_form(text) from error
        elif _PREFIX.fullmatch(kind):
            key = cls.prefixed(kind, body, space=space)
        else:
            raise _not_a_text_form(text)
        if key.text != text:  # "ns:1:042", "%3a": only the canonical spelling names a lock
            raise _not_a_text_form(text)
        return key

    @property
    def pg(self) -> PgKey:
        """This key on PostgreSQL. Ids that fit go in as they are, so that ``pg_locks`` can be read by eye."""
        if self._pg is None:
            object.__setattr__(self, "_pg", self._pg_form())
        assert self._pg is not None
        return self._pg

    def _pg_form(self) -> PgKey:
        namespace, entity = self.namespace, self.entity
        if namespace is not None and entity is not None and not self.space and -_INT32 <= entity < _INT32:
            return PgKey(namespace, entity)
        return PgKey(None, _bigint(self._encoded()))

    def _encoded(self) -> bytes:
        encoded = _part(b"p", self.space.encode()) if self.space else b""
        if self.prefix is not None:
            return encoded + _part(b"v", f"{self.prefix}:{self.name}".encode())
        if self.name is not None:
            return encoded + _part(b"s", self.name.encode())
        return encoded + _part(b"n", str(self.namespace).encode()) + _part(b"i", str(self.entity).encode())

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a Key is immutable: {name} cannot be set")

    def __eq__(self, other: object) -> bool:
        return self.text == other.text if isinstance(other, Key) else NotImplemented

    def __hash__(self) -> int:
        return self._hash

    def __str__(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return f"<Key {self.text}>"

    def __reduce__(self) -> tuple[object, ...]:
        return Key, (self.space, self.name, self.namespace, self.entity, self.prefix)


def key_of(space: str, parts: tuple[object, ...]) -> Key:
    """``Key.of`` for whoever has the parts in a tuple."""
    if len(parts) == 1 and isinstance(parts[0], tuple):
        parts = parts[0]  # the cache looks at the types of its arguments, not into a tuple
    try:
        # typed: 1, 1.0 and True are equal and must not share a cache entry.
        return _cached(space, *parts)
    except TypeError:
        return _checked(space, *parts)  # an unhashable part: say which


def lock_key_from_string(name: str) -> int:
    """A signed 64-bit lock id for a string: the same in every process, on every machine, in every Python version."""
    if not isinstance(name, str) or not name:
        raise InvalidKey(f"lock_key_from_string takes a string that is not empty, not {name!r}")
    return _bigint(_part(b"s", _utf8(name, "the string")))


def canonical_order(key: Key) -> tuple[object, ...]:
    """Sorts keys into the one order in which ``hold_many`` takes them, everywhere."""
    if key.prefix is not None:
        return (key.space, 2, 0, 0, f"{key.prefix}:{key.name}")
    if key.name is not None:
        return (key.space, 1, 0, 0, key.name)
    return (key.space, 0, key.namespace, key.entity, "")


def escape(part: str) -> str:
    """``part`` with ``%``, ``:``, braces, white space and control characters percent-encoded."""
    return part.translate(_ESCAPES)


def checked_prefix(prefix: object) -> str:
    """``prefix`` if keys may have it. Those under four characters are kept for text forms of Holdfast's own."""
    if not isinstance(prefix, str) or not _PREFIX.fullmatch(prefix):
        raise InvalidKey(
            f"prefix {prefix!r}: give 4 to 40 ASCII letters, digits, '_', '-' or '.', a letter first; not 'holdfast'"
        )
    return prefix


def _bigint(encoded: bytes) -> int:
    return int.from_bytes(blake2b(encoded, digest_size=8).digest(), "big", signed=True)


def _part(tag: bytes, value: bytes) -> bytes:
    # Typed and length-prefixed: no two different keys have one encoding.
    return tag + len(value).to_bytes(4, "big") + value


def _percent(codepoint: int) -> str:
    return "".join(f"%{byte:02X}" for byte in chr(codepoint).encode())


# Spelled out rather than asked of `str.isspace`, whose answer may change with Python's Unicode tables.
_WHITE_SPACE: Final = (0x20, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000)
_CONTROL: Final = (*range(0x20), *range(0x7F, 0xA0))
_ESCAPES: Final = {codepoint: _percent(codepoint) for codepoint in (*map(ord, "%:{}"), *_WHITE_SPACE, *_CONTROL)}


# "holdfast:…" are keys on a Redis that are no locks.
_PREFIX: Final = re.compile(r"(?!holdfast$)[A-Za-z][A-Za-z0-9_.-]{3,39}")


def _written(name: object) -> str:
    """``name`` if it is written as ``escape`` writes parts, with ``:`` between: so one lock has one name."""
    if not isinstance(name, str):
        raise InvalidKey(f"name {name!r} of a prefixed key is not a string")
    _utf8(name, "the key")
    for part in name.split(":"):
        if not part:
            raise InvalidKey(f"the key {name[:80]!r} has an empty part")
        try:
            plain = _unescape(part, name)
        except InvalidKey:
            plain = None
        if plain is None or escape(plain) != part:
            raise InvalidKey(
                f"{part[:80]!r} of the key {name[:80]!r} holds what must be written as %XX: a '%', a brace, white "
                "space or a control character"
            )
    return name


def _unescape(part: str, text: str) -> str:
    head, *rest = part.split("%")
    try:
        raw = head.encode() + b"".join(bytes.fromhex(piece[:2]) + piece[2:].encode() for piece in rest)
        return raw.decode()
    except ValueError as error:
        raise _not_a_text_form(text) from error


def _not_a_text_form(text: str) -> InvalidKey:
    return InvalidKey(f"{text[:80]!r} is not the text form of a key; one looks like 'ns:1:42' or 'key:nightly-report'")


def _utf8(part: str, what: str) -> bytes:
    try:
        return part.encode()
    except UnicodeEncodeError as error:
        raise InvalidKey(f"{what} {part[:80]!r} holds a lone surrogate, which no server can store") from error


def _checked(space: str, *parts: object) -> Key:
    if space:
        _utf8(space, "the space")
    match parts:
        case (Key() as key,):
            if key.space == space:
                return _within_bounds(key)
            if key.space:
                raise InvalidKey(f"key {key.text} belongs to space {key.space!r}; this client works in {space!r}")
            return _within_bounds(Key(space, key.name, key.namespace, key.entity, key.prefix))
        case (str() as name,):
            if not name:
                raise InvalidKey("the key is an empty string; name what is to be locked")
            _utf8(name, "the key")
            return _within_bounds(Key(space, name, None, None))
        case (namespace, entity):
            number = _integer("namespace", namespace, _INT32)
            return _within_bounds(Key(space, None, number, _integer("entity id", entity, _INT64)))
    shown = ", ".join(map(repr, parts))[:80]
    raise InvalidKey(f"({shown}) is not a key; give one string, or a namespace and an entity id")


_cached = lru_cache(maxsize=4096, typed=True)(_checked)


def _integer(what: str, value: object, bound: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        hint = "; for a text id use one string key, such as 'user:…'" if isinstance(value, str) else ""
        raise InvalidKey(f"{what} {value!r} is not an integer{hint}")
    if not -bound <= value < bound:
        raise InvalidKey(f"{what} {_shown(value)} is out of range: it must fit {bound.bit_length()} bits, signed")
    return int(value)


def _shown(number: int) -> str:
    # Python refuses to write out an int of thousands of digits.
    return str(int(number)) if number.bit_length() <= 128 else f"of {number.bit_length()} bits"


def _within_bounds(key: Key) -> Key:
    size = len(key.text.encode())
    if size > MAX_TEXT_BYTES:
        raise InvalidKey(f"key {key.text[:60]}… is {size} bytes long in text form; {MAX_TEXT_BYTES} is the most")
    return key
