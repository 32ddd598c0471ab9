"""What becomes of a block whose engine cannot be reached: refused, or run without a lock by explicit choice."""

import asyncio
import logging

import pytest

from holdfast import AsyncLocks, BackendUnavailable, InvalidOption, Locks, NotHeld, Unsupported
from holdfast.deadline import Deadline
from holdfast.engines.memory import MemoryEngine
from holdfast.flow import Flow
from holdfast.ticket import Ticket


class Outage(MemoryEngine):
    """A memory engine that can be made unreachable at each of its steps."""

    down: frozenset[str] = frozenset()

    @property
    def ready(self) -> bool:
        return "open" not in self.down

    def open(self, deadline: Deadline, new_wakeup: object) -> Flow[None]:
        self._check("open")
        yield from ()

    def grab(self, ticket: Ticket) -> bool | None:
        return None

    def drop(self, ticket: Ticket) -> bool:
        return False

    def acquire(self, ticket: Ticket) -> Flow[bool]:
        self._check("acquire")
        return (yield from super().acquire(ticket))

    def release(self, ticket: Ticket) -> Flow[None]:
        self._check("release")
        yield from super().release(ticket)

    def _check(self, step: str) -> None:
        if step in self.down:
            raise BackendUnavailable(f"{step} failed")


@pytest.mark.parametrize("step", ["open", "acquire"])
def test_an_unreachable_engine_refuses_unless_told_to_proceed(step: str, caplog: pytest.LogCaptureFixture) -> None:
    engine = Outage(f"outage-{step}")
    engine.down = frozenset({step})
    locks = Locks(engine)
    with pytest.raises(BackendUnavailable):
        with locks.hold("k"):
            raise AssertionError("ran without a lock")
    assert locks.unprotected == 0
    ran = 0
    with caplog.at_level(logging.WARNING, "holdfast"):
        with locks.hold("k", unavailable="proceed") as held:
            ran += 1
            assert not held.protected and not held.lost
            held.check()
            held.extend()
            with pytest.raises(Unsupported, match="unprotected"):
                _ = held.fence
            with pytest.raises(NotHeld, match="unprotected"):
                held.detach()
            with locks.hold("k", unavailable="proceed"):  # nothing is held, so this is no re-entry
                pass
    assert ran == 1 and locks.unprotected == 2
    assert "action=unprotected key=key:k" in caplog.text


def test_the_same_for_tasks() -> None:
    async def main() -> None:
        engine = Outage("outage-async")
        engine.down = frozenset({"acquire"})
        locks = AsyncLocks(engine)
        with pytest.raises(BackendUnavailable):
            await locks.hold("k").__aenter__()
        async with locks.try_hold("k", unavailable="proceed") as held:
            assert held is not None and not held.protected
        assert locks.unprotected == 1

    asyncio.run(main())


def test_what_goes_wrong_in_the_body_is_the_bodys_own_and_it_runs_once() -> None:
    locks, ran = Locks(MemoryEngine("outage-body")), 0
    with pytest.raises(BackendUnavailable, match="of the body"):
        with locks.hold("k", unavailable="proceed") as held:
            assert held.protected
            ran += 1
            raise BackendUnavailable("of the body")
    assert ran == 1 and locks.unprotected == 0


def test_a_release_that_cannot_be_confirmed_is_no_error_to_who_proceeds(caplog: pytest.LogCaptureFixture) -> None:
    engine = Outage("outage-release")
    locks = Locks(engine)
    with caplog.at_level(logging.WARNING, "holdfast"):
        with locks.hold("k", unavailable="proceed"):
            engine.down = frozenset({"release"})
    assert "action=unreleased key=key:k" in caplog.text
    engine.down = frozenset()
    with pytest.raises(BackendUnavailable):
        with locks.hold("other"):
            engine.down = frozenset({"release"})


def test_a_busy_lock_is_busy_for_those_who_would_proceed_too() -> None:
    locks = Locks(MemoryEngine("outage-busy"))
    with locks.hold("k"):
        with locks.try_hold("k", unavailable="proceed") as held:
            assert held is None


def test_anything_else_is_refused() -> None:
    with pytest.raises(InvalidOption, match="refuse"):
        Locks(MemoryEngine()).hold("k", unavailable="ignore")  # type: ignore[arg-type]
