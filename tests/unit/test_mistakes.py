"""Odd arguments get a typed error, before anything is acquired; odd but right ones work."""

import asyncio
import functools
import shutil
import time
from pathlib import Path

import pytest

from holdfast import AsyncLocks, InvalidKey, InvalidOption, Key, LockNamespace, Locks, NotHeld, order
from holdfast.engines.file import sweep
from holdfast.engines.file.engine import open_folder


def test_a_token_with_odd_letters_is_stale_not_a_crash() -> None:
    locks = Locks.from_url("memory://odd-token")
    with locks.hold("a") as held:
        held.detach()
    with pytest.raises(NotHeld):
        locks.attach("holdfast1:key%3Aa:ü").__enter__()


def test_numbers_beyond_all_bounds() -> None:
    with Locks.from_url("memory://huge").hold("a", wait=10**400):
        pass
    with pytest.raises(InvalidKey, match="out of range"):
        Key.of(1, 10**5000)


def test_the_cache_does_not_mix_up_numbers_inside_a_tuple() -> None:
    Key.of((1, 1))
    for odd in (True, 1.0):
        with pytest.raises(InvalidKey):
            Key.of((1, odd))


def test_keys_that_are_no_list() -> None:
    with pytest.raises(InvalidOption, match="keys=5"):
        Locks.from_url("memory://keys").hold_many(5)  # type: ignore[arg-type]


def test_string_keys_have_no_order_as_a_group() -> None:
    order.reset()
    locks = Locks.from_url("memory://groups", order="raise")
    with locks.hold("nightly-report"), locks.hold(LockNamespace.AGENT, 42):
        pass
    with locks.hold(LockNamespace.AGENT, 42), locks.hold("sync:7"):
        pass  # report, agent, sync: no circle
    order.reset()


@pytest.mark.parametrize("key", [(1, "a{x}"), (1, "{x!r}"), ("a:{x:{y}}",)])
def test_templates_that_cannot_work_are_refused_when_decorating(key: tuple[object, ...]) -> None:
    with pytest.raises(InvalidKey):
        Locks.from_url("memory://t").exclusive(*key)


def test_a_class_method_is_refused_when_decorating() -> None:
    for locks in (Locks.from_url("memory://t"), AsyncLocks.from_url("memory://t")):
        with pytest.raises(InvalidOption, match="classmethod"):
            locks.exclusive("k")(classmethod(lambda cls: None))  # type: ignore[arg-type]


def test_an_unknown_field_of_a_partial_is_named() -> None:
    with pytest.raises(InvalidKey, match="no parameter q"):
        Locks.from_url("memory://t").exclusive("a:{q}")(functools.partial(lambda x: x))


def test_an_async_wrapper_of_a_plain_function_is_async() -> None:
    def plain() -> int:
        return 1

    @functools.wraps(plain)
    async def wrapper() -> int:
        return await asyncio.to_thread(plain)

    assert asyncio.run(AsyncLocks.from_url("memory://t").exclusive("w")(wrapper)()) == 1


def test_a_long_note_of_odd_letters_can_be_read_back(tmp_path: Path) -> None:
    locks = Locks.from_url(tmp_path.as_uri())
    with locks.hold("a", note="😀" * 1000):
        assert locks.holders()[0].key == "key:a"


def test_holders_of_a_folder_that_is_gone(tmp_path: Path) -> None:
    locks = Locks.from_url((tmp_path / "gone").as_uri())
    shutil.rmtree(tmp_path / "gone")
    assert locks.holders() == []


def test_a_fence_that_is_ahead_of_the_clock_is_not_swept_away(tmp_path: Path) -> None:
    locks = Locks.from_url(tmp_path.as_uri())
    with locks.hold("a"):
        pass
    ahead = int((time.time() + 1e6) * 1e6)
    next(tmp_path.glob("*.lock")).write_text(f"{ahead:020d}\n")
    folder = open_folder(str(tmp_path))
    assert sweep.sweep(folder.path, folder.id, unused=-10) == 0
    with locks.hold("a") as held:
        assert held.fence > ahead


def test_a_function_with_a_fixed_key_is_exclusive_also_where_locks_know_no_owner(tmp_path: Path) -> None:
    locks = Locks.from_url(tmp_path.as_uri())

    @locks.exclusive("nightly", unavailable="proceed")
    def report() -> str | None:
        holder = locks.holder("nightly")
        return holder and holder.key

    assert report() == "key:nightly"
    assert locks.holder("nightly") is None
    with pytest.raises(InvalidOption, match="refuse"):
        locks.exclusive("nightly", unavailable="maybe")  # type: ignore[call-overload]
