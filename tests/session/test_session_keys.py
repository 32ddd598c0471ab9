"""What a conversation's lock is called."""

import asyncio
from enum import Enum, IntEnum, StrEnum
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from holdfast import AsyncLocks, InvalidKey, SessionLock, build_lock_key, build_session_key, settings
from holdfast.testing import PATIENCE, Stopwatch

T, A, C = (UUID(int=number) for number in (1, 2, 3))


def test_the_name_is_made_of_tenant_agent_customer_and_channel() -> None:
    assert build_session_key(T, A, C, "web") == f"{T}:{A}:{C}:web"
    assert build_lock_key(T, A, C, "web") == f"sesslock:{T}:{A}:{C}:web"


def test_the_lock_is_a_redis_string_of_exactly_that_name(redis_url: str, db: Any) -> None:
    async def main() -> None:
        name = build_lock_key(*(ids := [uuid4() for _ in range(3)]), "web")
        async with SessionLock(redis_url, lock_timeout=7) as lock:
            async with lock.acquire(build_session_key(*ids, "web")) as acquired:
                assert acquired and str(acquired.key) == name
                assert db.type(name) == "string"
                assert 0 < db.pttl(name) <= 7000
                assert len(db.get(name)) > 32  # the token
                assert not list(db.scan_iter("sesslock:sesslock:*"))
            assert not db.exists(name)

    asyncio.run(main())


def test_session_key_and_lock_key_name_one_lock(url: str) -> None:
    async def main() -> None:
        ids = [uuid4() for _ in range(3)]
        async with SessionLock(url) as lock:
            async with lock.acquire(build_session_key(*ids, "web")):
                assert await lock.is_locked(build_lock_key(*ids, "web"))
                async with lock.acquire(build_lock_key(*ids, "web"), 0) as second:
                    assert not second

    asyncio.run(main())


def test_another_channel_agent_or_customer_is_another_lock(url: str) -> None:
    async def main() -> None:
        tenant, agent, customer, other = (uuid4() for _ in range(4))
        async with SessionLock(url) as lock:
            async with (
                lock.acquire(build_session_key(tenant, agent, customer, "web"), 0) as one,
                lock.acquire(build_session_key(tenant, agent, customer, "sms"), 0) as two,
                lock.acquire(build_session_key(tenant, other, customer, "web"), 0) as three,
                lock.acquire(build_session_key(tenant, agent, other, "web"), 0) as four,
            ):
                assert one and two and three and four

    asyncio.run(main())


def test_colons_in_parts_are_written_out() -> None:
    assert build_session_key("a:b", "c", "d", "web") != build_session_key("a", "b:c", "d", "web")
    assert build_session_key("a:b", "c", "d", "web") == "a%3Ab:c:d:web"


@pytest.mark.parametrize(
    ("session_key", "says"),
    [
        ("sesslock:a:b:c", "may be the session key of a tenant 'sesslock'"),
        ("a::c:web", "empty part"),
        ("a b:c", "must be written as %XX"),
        ("a:{b}", "must be written as %XX"),
        ("a:50%", "must be written as %XX"),
        ("", "empty part"),
        (None, "is no session key"),
    ],
)
def test_a_key_that_could_name_two_locks_is_refused(redis_url: str, session_key: Any, says: str) -> None:
    with pytest.raises(InvalidKey, match=says):
        SessionLock(redis_url).acquire(session_key)


@pytest.mark.parametrize("bad", [None, "", True, 1.5, b"web"])
def test_a_part_that_is_missing_is_no_part(bad: Any) -> None:
    with pytest.raises(InvalidKey, match="channel"):
        build_lock_key(T, A, C, bad)


def test_an_enum_of_channels_is_taken_by_its_value() -> None:
    class Channel(str, Enum):  # noqa: UP042  the older way, whose text form has changed from version to version
        WEB = "web"

    class Modern(StrEnum):
        WEB = "web"

    class Tenant(IntEnum):
        ACME = 7

    for channel in (Channel.WEB, Modern.WEB, "web"):
        assert build_session_key(Tenant.ACME, 2, "c", channel) == "7:2:c:web"


def test_a_tenant_that_is_called_like_the_prefix_has_a_lock_of_its_own(redis_url: str) -> None:
    lock = SessionLock(redis_url)
    name = build_lock_key("sesslock", "a", "b", "web")
    assert str(lock.key(name)) == name == "sesslock:sesslock:a:b:web"


def test_what_is_configured_is_really_used(
    redis_url: str, db: Any, session_key: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "holdfast.toml").write_text(
        "[session.lock]\nkey_prefix = 'turns'\ntimeout_seconds = 9\nblocking_timeout_seconds = 0.2\n"
    )
    settings.forget()

    async def main() -> None:
        async with SessionLock(redis_url) as lock:
            async with lock.acquire(session_key, PATIENCE) as held:  # it has to be reached first
                watch = Stopwatch()
                assert not await asyncio.create_task(lock.acquire(session_key).__aenter__())
                assert watch.elapsed >= 0.2 and watch.awake < 2
                assert held and str(held.key) == f"turns:{session_key}" == build_lock_key(*session_key.split(":"))
                assert 0 < db.pttl(f"turns:{session_key}") <= 9000
                assert await lock.is_locked(f"turns:{session_key}")
                with pytest.raises(InvalidKey, match="two names, two locks"):
                    await lock.is_locked(f"sesslock:{session_key}")
        async with SessionLock(redis_url, key_prefix="other") as lock:
            async with lock.acquire(session_key, PATIENCE):
                assert db.exists(f"other:{session_key}")

    asyncio.run(main())
    for prefix in ("holdfast", "key", "ns", "a:b", "", "späße"):
        with pytest.raises(InvalidKey, match="prefix"):
            SessionLock(redis_url, key_prefix=prefix)


def test_a_space_keeps_deployments_apart(redis_url: str, session_key: str, db: Any) -> None:
    async def main() -> None:
        async with AsyncLocks.from_url(redis_url, space="staging") as locks:
            lock = SessionLock(locks)
            held = await lock.acquire_detached(session_key, owner="turn")
            assert held.key == f"in:staging:sesslock:{session_key}" and db.exists(held.key)
            assert await lock.extend(session_key, 5, token=held)
            assert await lock.release(held)

    asyncio.run(main())
