"""Lock order: the first inversion is reported with both places, before anyone hangs."""

import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import nullcontext

import pytest

from holdfast import AsyncLocks, InvalidOption, LockNamespace, LockOrderWarning, Locks, WouldDeadlock, order


@pytest.fixture(autouse=True)
def _afresh() -> Iterator[None]:
    order.reset()
    yield
    order.reset()


def take(locks: Locks, *keys: tuple) -> None:
    """Takes the keys one inside the other."""
    if keys:
        with locks.hold(*keys[0]):
            take(locks, *keys[1:])


def test_opposite_order_of_two_keys_is_reported_with_both_places() -> None:
    locks = Locks.from_url("memory://order")

    def here() -> str:
        return f"{__file__}:{sys._getframe(1).f_lineno}"

    with locks.hold("a"):
        with locks.hold("b"), nullcontext(here()) as first_place:
            pass
    with pytest.warns(LockOrderWarning) as caught, locks.hold("b"):
        with locks.hold("a"), nullcontext(here()) as second_place:
            pass
    message = str(caught[0].message)
    assert first_place in message
    assert second_place in message
    assert caught[0].filename == __file__


def test_an_inversion_is_reported_once() -> None:
    locks = Locks.from_url("memory://order")
    take(locks, ("a",), ("b",))
    with pytest.warns(LockOrderWarning):
        take(locks, ("b",), ("a",))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        take(locks, ("b",), ("a",))


def test_order_between_namespaces_counts_whatever_the_ids() -> None:
    locks = Locks.from_url("memory://order", order="raise")
    take(locks, (LockNamespace.AGENT, 1), (LockNamespace.SCHEDULER, 1))
    with pytest.raises(WouldDeadlock, match="order inverted"):
        take(locks, (LockNamespace.SCHEDULER, 7), (LockNamespace.AGENT, 9))


def test_order_of_keys_inside_a_namespace_counts_key_by_key() -> None:
    locks = Locks.from_url("memory://order", order="raise")
    take(locks, (1, 1), (1, 2))
    take(locks, (1, 4), (1, 3))
    with pytest.raises(WouldDeadlock):
        take(locks, (1, 2), (1, 1))
    with pytest.raises(WouldDeadlock):  # every time, not just the first
        take(locks, (1, 2), (1, 1))


def test_a_circle_of_three_is_seen() -> None:
    locks = Locks.from_url("memory://order", order="raise")
    take(locks, ("a",), ("b",))
    take(locks, ("b",), ("c",))
    with pytest.raises(WouldDeadlock):
        take(locks, ("c",), ("a",))


def test_tries_add_no_order_but_what_they_hold_counts() -> None:
    locks = Locks.from_url("memory://order", order="raise")
    with locks.hold("a"), locks.try_hold("b") as held:
        assert held
    take(locks, ("b",), ("a",))  # a try never waits, so nothing was shown
    order.reset()
    with locks.try_hold("x") as held:
        assert held
        take(locks, ("y",))
    with pytest.raises(WouldDeadlock):
        take(locks, ("y",), ("x",))


def test_all_locks_back_to_the_last_wait_are_before_the_new_one() -> None:
    locks = Locks.from_url("memory://order", order="raise")
    with locks.hold("a"), locks.try_hold("b"), locks.try_hold("c"), locks.hold("d"):
        pass
    for before in ("a", "b", "c"):
        with pytest.raises(WouldDeadlock):
            take(locks, ("d",), (before,))


def test_order_is_seen_across_clients_of_one_server_and_across_servers() -> None:
    one, other = Locks.from_url("memory://order", order="raise"), Locks.from_url("memory://order", order="raise")
    take(one, ("a",), ("b",))
    with pytest.raises(WouldDeadlock):
        take(other, ("b",), ("a",))
    elsewhere = Locks.from_url("memory://order-elsewhere", order="raise")
    with one.hold("a"), elsewhere.hold("a"):
        pass
    with pytest.raises(WouldDeadlock):
        with elsewhere.hold("a"), one.hold("a"):
            pass


def test_each_thread_has_its_own_order_and_locks_of_others_do_not_count() -> None:
    locks = Locks.from_url("memory://order", order="raise")
    take(locks, ("a",), ("b",))
    with locks.hold("b"):
        thread = threading.Thread(target=take, args=(locks, ("a",)))
        thread.start()
        thread.join()


def test_off_is_off() -> None:
    locks = Locks.from_url("memory://order", order="off")
    take(locks, ("a",), ("b",))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        take(locks, ("b",), ("a",))


def test_memory_is_bounded() -> None:
    seen = order.SeenOrders(limit=100)
    for number in range(1000):
        seen.add(number, number + 1, "place")
    assert len(seen) == 100
    assert len(seen.after) == 100
    assert seen.has(999, 1000)
    assert not seen.has(0, 1)


def test_the_search_of_a_long_chain_ends() -> None:
    seen = order.SeenOrders(limit=100_000)
    for number in range(50_000):
        seen.add(number, number + 1, "place")
    assert seen.place_of_path(0, 50_001) is None


def test_an_endless_wait_while_holding_is_refused() -> None:
    locks = Locks.from_url("memory://order")
    with locks.hold("a", wait=None):
        with pytest.raises(WouldDeadlock, match="wait=None"):
            with locks.hold("b", wait=None):
                pass
    with pytest.raises(WouldDeadlock, match="wait=None"):
        locks.hold_many(["a", "b"], wait=None)
    with locks.hold_many(["a"], wait=None):
        pass


def test_the_option_is_checked() -> None:
    for client in (Locks, AsyncLocks):
        with pytest.raises(InvalidOption, match="order="):
            client.from_url("memory://", order="sometimes")  # type: ignore[arg-type]
