"""What the clients do on top of any engine."""

import asyncio
import functools
import gc
import logging
import sys
import threading
from pathlib import Path

import pytest

from holdfast import (
    AsyncLocks,
    BackendUnavailable,
    Engine,
    InvalidKey,
    InvalidOption,
    Key,
    LockNamespace,
    Locks,
    MissingExtra,
    NotAcquired,
    Unsupported,
    register_engine,
)
from holdfast.engines.memory import MemoryEngine
from holdfast.ticket import Ticket


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("mysql://root:secret@db/app", "no engine for 'mysql'"),
        ("nonsense", "give one such as"),
        ("", "give one such as"),
        (None, "give one such as"),
        ("memory:name", "give one such as"),
        ("file://relative/dir", "absolute path"),
        ("file://", "absolute path"),
        ("file:///tmp/x?y=1", "absolute path"),
    ],
)
def test_a_bad_url_is_refused_and_its_secret_is_not_shown(url: str, says: str) -> None:
    for client in (Locks, AsyncLocks):
        with pytest.raises(InvalidOption) as caught:
            client.from_url(url)
        assert says in str(caught.value)
        assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("driver", "url"), [("redis", "redis://localhost"), ("psycopg", "postgresql://u:secret@db/app")]
)
def test_a_missing_driver_says_what_to_install(driver: str, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, driver, None)  # as if it were not installed
    extra = {"redis": "redis", "psycopg": "postgres"}[driver]
    with pytest.raises(MissingExtra, match=rf"pip install 'holdfast\[{extra}\]'") as caught:
        Locks.from_url(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("url", ["memory://options", "file:///tmp"])
def test_an_unknown_option_is_named(url: str) -> None:
    with pytest.raises(InvalidOption, match="max_connections"):
        Locks.from_url(url, max_connections=4)


@pytest.mark.parametrize("scheme", ["memory", "file"])
def test_a_ttl_on_an_engine_without_leases_names_option_key_and_engine(scheme: str, tmp_path: object) -> None:
    url = f"file://{tmp_path}" if scheme == "file" else "memory://ttl"
    with pytest.raises(Unsupported, match=rf"ttl=5 \(key:a\): the {scheme} engine"):
        Locks.from_url(url).hold("a", ttl=5)
    with pytest.raises(Unsupported, match="ttl=5"):
        Locks.from_url(url, ttl=5)


def test_a_folder_that_cannot_be_used_says_so(tmp_path: object) -> None:
    with open(f"{tmp_path}/taken", "w"):
        pass
    with pytest.raises(BackendUnavailable, match="cannot be used for locks"):
        Locks.from_url(f"file://{tmp_path}/taken/locks")


def test_bad_notes_spaces_and_key_lists_are_refused() -> None:
    locks = Locks.from_url("memory://bad")
    with pytest.raises(InvalidOption, match="note="):
        locks.hold("a", note=7)  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="space="):
        Locks.from_url("memory://bad", space=7)  # type: ignore[arg-type]
    with pytest.raises(InvalidKey):
        Locks.from_url("memory://bad", space="\ud800")
    with pytest.raises(InvalidOption, match="one string"):
        locks.hold_many("abc")
    with pytest.raises(InvalidOption, match="at least one"):
        locks.hold_many([])
    with pytest.raises(InvalidKey):
        locks.hold_many(["a", (1, "b")])  # type: ignore[list-item]


def test_a_timeout_says_who_holds_it() -> None:
    locks = Locks.from_url("memory://who")
    messages = []

    def wait() -> None:
        with pytest.raises(NotAcquired) as caught:
            locks.hold(LockNamespace.AGENT, 42, wait=0.05).__enter__()
        messages.append(str(caught.value))

    with locks.hold(LockNamespace.AGENT, 42, note="nightly import"):
        thread = threading.Thread(target=wait)
        thread.start()
        thread.join()
    assert "ns:1:42 was busy for all of the 0.05 s" in messages[0]
    assert "thread MainThread" in messages[0]
    assert "nightly import" in messages[0]


def test_a_failing_callback_is_logged_and_harms_nobody(caplog: pytest.LogCaptureFixture) -> None:
    locks = Locks.from_url("memory://callback")

    def fails(held: object) -> None:
        raise RuntimeError("callback")

    block = locks.hold("a", on_lost=fails)
    block.__enter__()
    with caplog.at_level(logging.ERROR, "holdfast"):
        assert locks.evict("a")
    assert "action=on_lost_failed key=key:a" in caplog.text


def test_an_engine_of_ones_own_is_found_by_its_scheme() -> None:
    def open_engine(place: str, options: dict) -> Engine:
        return MemoryEngine(f"mine/{place}")

    register_engine("mine", open_engine)
    with Locks.from_url("mine://x").hold("a"):
        pass
    with pytest.raises(InvalidOption):
        register_engine("memory", open_engine)


def test_a_hold_leaves_nothing_for_the_garbage_collector() -> None:
    def tickets() -> int:  # of this test: threads of others may still be at theirs
        return sum(isinstance(thing, Ticket) and thing.key == key for thing in gc.get_objects())

    async def hold_and_release() -> None:
        locks = AsyncLocks.from_url("memory://no-garbage")
        before = tickets()
        async with locks.hold(key, on_lost=print):
            assert tickets() == before + 1
        assert tickets() == before

    key = Key.of("no-garbage")
    gc.collect()
    gc.disable()
    try:
        asyncio.run(hold_and_release())
        before = tickets()
        with Locks.from_url("memory://no-garbage").hold(key, on_lost=print):
            pass
        assert tickets() == before
    finally:
        gc.enable()


def test_equal_names_share_a_space_and_others_do_not() -> None:
    with Locks.from_url("memory://one").hold("a"):
        found = []

        def look() -> None:
            for url in ("memory://one", "memory://two", "memory://"):
                with Locks.from_url(url).try_hold("a") as held:
                    found.append(held is not None)

        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
    assert found == [False, True, True]


class TestExclusive:
    locks = Locks.from_url("memory://exclusive")

    def test_the_arguments_name_the_lock(self) -> None:
        seen = []

        @self.locks.exclusive("sync:{user_id}:{kind}")
        def sync(user_id: int, kind: str = "full") -> str:
            seen.extend(holder.key for holder in self.locks.holders())
            return "done"

        assert sync(7) == "done"
        assert sync(kind="a:b", user_id=8) == "done"
        assert seen == ["key:sync%3A7%3Afull", "key:sync%3A8%3Aa%253Ab"]

    def test_values_cannot_run_into_each_other(self) -> None:
        seen = set()

        @self.locks.exclusive("{a}:{b}")
        def work(a: str, b: str) -> None:
            seen.update(holder.key for holder in self.locks.holders())

        work("x:y", "z")
        work("x", "y:z")
        work("x%3Ay", "z")
        assert len(seen) == 3

    def test_a_namespace_goes_with_a_field(self) -> None:
        seen = []

        @self.locks.exclusive(LockNamespace.AGENT, "{agent.id}")
        def work(agent: object) -> None:
            seen.extend(holder.key for holder in self.locks.holders())

        class Agent:
            id = 42

        work(Agent())
        assert seen == ["ns:1:42"]

    def test_busy_skips_raises_or_waits(self) -> None:
        calls = []

        @self.locks.exclusive("job", busy="skip")
        def skips() -> str:
            calls.append("skips")
            return "ran"

        @self.locks.exclusive("job", busy="raise")
        def raises() -> str:
            return "ran"

        @self.locks.exclusive("job", wait=0.05)
        def waits() -> str:
            return "ran"

        outcomes: list[object] = []

        def call_all() -> None:
            outcomes.append(skips())
            for function in (raises, waits):
                with pytest.raises(NotAcquired):
                    function()

        with self.locks.hold("job"):
            thread = threading.Thread(target=call_all)
            thread.start()
            thread.join()
            assert skips() is None  # busy by ourselves
        assert outcomes == [None]
        assert calls == []
        assert (skips(), raises(), waits()) == ("ran", "ran", "ran")

    def test_a_fixed_key_asks_for_nothing_that_an_engine_may_lack(self, tmp_path: Path) -> None:
        locks = Locks.from_url(tmp_path.as_uri())  # its locks have no owner of the caller's choice
        assert locks.exclusive("job")(lambda: "ran")() == "ran"
        assert locks.exclusive("job", unavailable="proceed")(lambda: "ran")() == "ran"

    def test_mistakes_are_told_when_decorating(self) -> None:
        with pytest.raises(InvalidOption, match="unavailable="):
            self.locks.exclusive("a", unavailable="ignore")  # type: ignore[call-overload]
        with pytest.raises(InvalidKey, match="no parameter user"):
            self.locks.exclusive("sync:{user}")(lambda user_id: None)
        with pytest.raises(InvalidOption, match="busy="):
            self.locks.exclusive("a", busy="maybe")  # type: ignore[call-overload]
        with pytest.raises(InvalidOption, match="wait="):
            self.locks.exclusive("a", busy="skip", wait=5)
        with pytest.raises(InvalidKey, match="empty"):
            self.locks.exclusive("")
        with pytest.raises(InvalidKey, match="must name its fields"):
            self.locks.exclusive("sync:{}")
        with pytest.raises(InvalidKey, match="valid template"):
            self.locks.exclusive("sync:{")

    def test_what_would_outlive_the_lock_is_refused(self) -> None:
        async def coroutine() -> None: ...

        def generator():  # type: ignore[no-untyped-def]
            yield

        for function in (coroutine, generator, functools.partial(coroutine)):
            with pytest.raises((InvalidOption, TypeError)):
                self.locks.exclusive("a")(function)
        with pytest.raises(InvalidOption, match="not an async function"):
            AsyncLocks.from_url("memory://exclusive").exclusive("a")(lambda: None)  # type: ignore[arg-type]

    def test_async_functions_are_for_async_locks(self) -> None:
        locks = AsyncLocks.from_url("memory://exclusive-async")
        running = most = 0

        @locks.exclusive("sync:{user_id}")
        async def sync(user_id: int) -> int:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0)
            running -= 1
            return user_id

        @locks.exclusive("sync:1", busy="skip")
        async def skips() -> str:
            return "ran"

        async def main() -> None:
            assert await asyncio.gather(*(sync(1) for _ in range(10))) == [1] * 10
            assert most == 1
            async with locks.hold("sync:1"):
                assert await skips() is None
            assert await skips() == "ran"

        asyncio.run(main())

    def test_methods_work_and_keep_their_name(self) -> None:
        exclusive = self.locks.exclusive

        class Report:
            number = 7

            @exclusive("report:{self.number}")
            def write(self, text: str) -> str:
                return text

        assert Report().write("x") == "x"
        assert Report.write.__name__ == "write"
