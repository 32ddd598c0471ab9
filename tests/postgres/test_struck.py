"""Ctrl-C at a bad moment, and a thread or loop that comes late to its work: nothing is wedged, nobody works twice."""

import asyncio
import threading
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from eyes import Server, wait_until
from pg_duty import take_duty

from addresses import with_option
from holdfast import AsyncLocks, Locks
from holdfast.engines.postgres.duty import Duty
from holdfast.engines.postgres.hub import Hub
from holdfast.testing import PATIENCE
from holdfast.ticket import Ticket


@pytest.fixture
def url(url: str) -> str:
    """An address that no other test has, and so connections of its own."""
    return with_option(url, f"application_name=holdfast-struck-{uuid4().hex[:8]}")


def hub_of(locks: Locks | AsyncLocks) -> Hub:
    return locks._client.engine._hub  # type: ignore[attr-defined,no-any-return]


def strike_once(monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> None:
    """Ctrl-C on entering that function, the first time."""
    real, struck = getattr(owner, name), threading.Event()

    def strike(*args: Any, **kwargs: Any) -> Any:
        if not struck.is_set():
            struck.set()
            raise KeyboardInterrupt
        return real(*args, **kwargs)

    monkeypatch.setattr(owner, name, strike)


@pytest.mark.parametrize("place", ["choose", "queue", "claim"])
def test_a_key_whose_taker_was_struck_can_be_taken(url: str, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    with Locks.from_url(url) as locks:
        with locks.hold("warm"):
            pass
        strike_once(monkeypatch, Duty, place)
        with pytest.raises(KeyboardInterrupt):
            locks.hold("k").__enter__()
        with locks.hold("k", wait=PATIENCE):
            pass


def test_a_key_whose_holder_was_struck_can_be_taken(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with Locks.from_url(url) as locks:
        block = locks.hold("k")
        block.__enter__()
        strike_once(monkeypatch, Duty, "queue")
        with pytest.raises(KeyboardInterrupt):
            block.__exit__(None, None, None)
        with locks.hold("k", wait=PATIENCE):
            pass


@pytest.mark.parametrize("engine", ["memory", "postgres"])
def test_an_heir_keeps_its_place_when_the_holder_is_struck(
    url: str, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    with Locks.from_url(url if engine == "postgres" else "memory://struck") as locks:
        block, got = locks.hold("k"), threading.Event()
        block.__enter__()

        def wait() -> None:
            with locks.hold("k", wait=PATIENCE):
                got.set()

        heir = threading.Thread(target=wait)
        heir.start()
        wait_until(lambda: any(ticket.wakeup for ticket in list(locks._client._tickets)), "nobody waits")
        strike_once(monkeypatch, Ticket, "granted")
        with pytest.raises(KeyboardInterrupt):
            block.__exit__(None, None, None)
        heir.join(PATIENCE)
        assert got.is_set()


def test_a_thread_that_comes_late_to_its_duty_leaves_it_to_who_has_it_now(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    locks = Locks.from_url(url, max_connections=1)
    gone, back, seen, join = threading.Event(), threading.Event(), threading.Event(), Hub.join
    with locks.hold("other"):  # so that the courier watches
        hub = hub_of(locks)
        (connection,) = hub.shared

        def late(self: Hub, ticket: Ticket, key: Any) -> Any:
            request = join(self, ticket, key)
            if request.serves:  # else the courier looks at the connection in this very moment, and has the duty
                wait_until(lambda: ticket.held and not connection.duty, "the courier did not begin in its place")
                gone.set()
                assert back.wait(PATIENCE)
            return request

        def work() -> None:
            while not gone.is_set():
                with locks.hold("k"):
                    if gone.is_set():
                        inside.set()
                        assert seen.wait(PATIENCE)

        monkeypatch.setattr(Hub, "join", late)
        inside, thread = threading.Event(), threading.Thread(target=work)
        thread.start()
        assert gone.wait(PATIENCE)
        take_duty(connection)
        back.set()
        assert inside.wait(PATIENCE)
        kept = connection.duty
        seen.set()
        hub.end_duty(connection)
        thread.join(PATIENCE)
        assert kept
    locks.close()


class Blind(asyncio.SelectorEventLoop):
    """A loop that cannot look at sockets."""

    def add_reader(self, fd: Any, callback: Any, *args: Any) -> None:  # type: ignore[override]
        raise NotImplementedError

    def remove_reader(self, fd: Any) -> bool:
        raise NotImplementedError


def test_a_loop_that_cannot_look_at_sockets_leaves_it_to_the_courier(url: str) -> None:
    loop, complaints = Blind(), list[Any]()
    loop.set_exception_handler(lambda _, context: complaints.append(context))

    async def main() -> None:
        async with AsyncLocks.from_url(url) as locks:
            for _ in range(3):
                async with locks.hold("k"):
                    pass

    loop.run_until_complete(main())
    loop.close()
    assert not complaints


class Nosy:
    """A driver's connection that has something happen between the question and the wait for its answer."""

    def __init__(self, pg: Any, happens: Any) -> None:
        self._pg, self._happens = pg, happens

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pg, name)

    def is_busy(self) -> bool:
        busy = bool(self._pg.is_busy())
        happens, self._happens = self._happens, None
        if happens is not None:
            happens()
        return busy


def test_a_connection_closed_amid_a_step_is_not_looked_at_any_more(url: str, server: Server) -> None:
    async def main() -> None:
        async with AsyncLocks.from_url(url) as locks:
            async with locks.hold("warm"):
                pass
            hub = hub_of(locks)
            (connection,) = [connection for connection in hub.shared if connection.pilot is not None]
            pilot = connection.pilot
            assert pilot is not None
            pilot.stop_reading()

            def close() -> None:
                broken = psycopg.OperationalError("closed elsewhere")
                thread = threading.Thread(target=hub.broke, args=(connection, broken))
                thread.start()
                thread.join()

            connection.pg = Nosy(connection.pg, close)
            async with locks.hold("k"):
                pass
            assert not pilot.reading

    asyncio.run(main())
