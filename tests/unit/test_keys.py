"""The wire format is frozen: two versions in one roll-out must not make two holders."""

import json
import pickle
import string
from enum import IntEnum
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast import InvalidKey, Key, LockNamespace, Locks, build_lock_key, lock_key_from_string
from holdfast.keys import canonical_order, escape

GOLDEN = json.loads((Path(__file__).parent.parent / "golden" / "keys.json").read_text())

names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)
int32 = st.integers(-(2**31), 2**31 - 1)
int64 = st.integers(-(2**63), 2**63 - 1)
keys = st.one_of(
    st.builds(lambda name, space: Key.of(name, space=space), names, st.one_of(st.just(""), names)),
    st.builds(lambda ns, entity, space: Key.of(ns, entity, space=space), int32, int64, st.one_of(st.just(""), names)),
    st.builds(
        lambda parts, space: Key.prefixed("sesslock", ":".join(map(escape, parts)), space=space),
        st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6), min_size=1, max_size=4),
        st.one_of(st.just(""), names),
    ),
)
conversations = st.tuples(*[st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)] * 4)


@pytest.mark.parametrize("vector", GOLDEN["keys"], ids=lambda vector: ascii(vector["text"])[:40])
def test_golden_vector(vector: dict) -> None:
    key = Key.of(*vector["parts"], space=vector["space"])
    assert key.text == vector["text"]
    assert list(key.pg) == vector["pg"]
    assert Key.parse(vector["text"]) == key


@pytest.mark.parametrize("vector", GOLDEN["prefixed"], ids=lambda vector: ascii(vector["text"])[:40])
def test_golden_vector_of_a_prefixed_key(vector: dict) -> None:
    key = Key.prefixed(vector["prefix"], vector["name"], space=vector["space"])
    assert key.text == vector["text"]
    assert list(key.pg) == vector["pg"]
    assert Key.parse(vector["text"]) == key
    assert pickle.loads(pickle.dumps(key)) == key


@pytest.mark.parametrize("vector", GOLDEN["build_lock_key"], ids=lambda vector: ascii(vector["key"])[:40])
def test_golden_session_key(vector: dict) -> None:
    assert build_lock_key(*vector["parts"]) == vector["key"]
    assert Key.parse(vector["key"]).text == vector["key"]


@given(conversations, conversations)
def test_parts_of_session_keys_cannot_run_into_each_other(one: tuple, other: tuple) -> None:
    assert (build_lock_key(*one) == build_lock_key(*other)) == (one == other)
    assert build_lock_key(*one).count(":") == 4


@pytest.mark.parametrize("text", GOLDEN["lock_key_from_string"], ids=lambda text: ascii(text)[:20])
def test_golden_lock_key_from_string(text: str) -> None:
    assert lock_key_from_string(text) == GOLDEN["lock_key_from_string"][text]


def test_a_string_key_and_lock_key_from_string_are_one_number() -> None:
    assert Key.of("nightly-report").pg == (None, lock_key_from_string("nightly-report"))


@given(keys)
def test_the_text_form_names_one_key_and_can_be_read_back(key: Key) -> None:
    assert Key.parse(key.text) == key
    assert Key.parse(key.text).text == key.text
    assert len(key.text.encode()) <= 512
    assert not any(char.isspace() or char in "{}" or ord(char) < 32 for char in key.text)


@given(keys, keys)
def test_different_keys_have_different_forms(one: Key, other: Key) -> None:
    same = one.__reduce__() == other.__reduce__()
    assert (one.text == other.text) == same
    assert (one == other) == same
    assert (one.pg == other.pg) == same
    assert (canonical_order(one) == canonical_order(other)) == same


@given(int32, int32)
def test_ids_of_32_bits_go_to_postgresql_as_they_are(namespace: int, entity: int) -> None:
    assert Key.of(namespace, entity).pg == (namespace, entity)
    assert Key.of(namespace, entity, space="staging").pg.classid is None


def test_parts_that_hold_colons_cannot_collide() -> None:
    assert Key.of("a:b", space="c") != Key.of("b", space="c:a")
    assert Key.of("ns:1:42").text != Key.of(1, 42).text
    assert Key.of("ns:1:42").pg != Key.of(1, 42).pg


def test_unicode_is_taken_as_it_is() -> None:
    assert Key.of("é").text != Key.of("e\u0301").text


def test_namespaces_are_open_to_users_and_holdfasts_own_differ() -> None:
    class Mine(IntEnum):
        INVOICE = 100

    assert LockNamespace.AGENT == 1
    assert len(set(LockNamespace)) == len(LockNamespace.__members__)
    assert LockNamespace.SCHEDULER != LockNamespace.AGENT
    assert Key.of(Mine.INVOICE, 7).text == "ns:100:7"


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ((), "is not a key"),
        (("",), "empty"),
        ((1,), "is not a key"),
        ((None,), "is not a key"),
        ((b"bytes",), "is not a key"),
        ((1, 2, 3), "is not a key"),
        (([1], 2), "namespace [1] is not an integer"),
        ((True, 1), "namespace True is not an integer"),
        ((1, True), "entity id True is not an integer"),
        ((1, 1.0), "entity id 1.0 is not an integer"),
        ((1, "42"), "entity id '42' is not an integer; for a text id use one string key"),
        ((2**31, 1), "namespace 2147483648 is out of range: it must fit 32 bits"),
        ((1, 2**63), "entity id 9223372036854775808 is out of range: it must fit 64 bits"),
        ((1, -(2**63) - 1), "entity id -9223372036854775809 is out of range"),
        (("x" * 509,), "513 bytes long"),
        (("é" * 300,), "604 bytes long"),
        (("\ud800",), "surrogate"),
    ],
)
def test_a_bad_key_is_refused_before_anything_is_acquired(parts: tuple, says: str) -> None:
    for refuse in (lambda: Key.of(*parts), lambda: Locks.from_url("memory://bad-keys").hold(*parts)):
        with pytest.raises(InvalidKey) as caught:
            refuse()
        assert says in str(caught.value)
        assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ns:1",
        "ns:1:042",
        "ns:01:4",
        "ns: 1:4",
        "key:",
        "key:a:b",
        "key:%3a",
        "key:%zz",
        "x:y",
        "in::key:a",
        "key:%41",
        "in:a",
        "holdfast:database",
        "sesslock:",
        "sesslock:a::b",
        "sesslock:a b",
        "sesslock:{a}",
        "sesslock:%3a",
        "sesslock:100%",
        "späße:a",
    ],
)
def test_only_the_canonical_spelling_is_read(text: str) -> None:
    with pytest.raises(InvalidKey):
        Key.parse(text)


def test_a_key_of_another_space_is_not_taken_for_ones_own() -> None:
    staging = Key.of("a", space="staging")
    with pytest.raises(InvalidKey, match="belongs to space 'staging'"):
        Locks.from_url("memory://").hold(staging)
    assert Key.of(Key.of("a"), space="staging") == staging


def test_keys_are_immutable_and_survive_pickling() -> None:
    key = Key.of(1, 2**40, space="staging")
    with pytest.raises(AttributeError):
        key.text = "ns:1:1"  # type: ignore[misc]
    assert pickle.loads(pickle.dumps(key)) == key
    assert {key: 1}[Key.of(1, 2**40, space="staging")] == 1


def test_text_forms_are_printable_ascii_where_the_key_is() -> None:
    assert Key.of(string.printable).text.isprintable()


@pytest.mark.parametrize("bad", ["", None, 7])
def test_lock_key_from_string_takes_strings(bad: object) -> None:
    with pytest.raises(InvalidKey):
        lock_key_from_string(bad)  # type: ignore[arg-type]
