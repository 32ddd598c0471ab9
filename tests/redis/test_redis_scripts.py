"""The scripts themselves, called as any client could: each is one promise of the lock."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sight import Database

from holdfast.engines.redis.scripts import DETACH, EVICT, EXTEND, LOOK, RELEASE, ROTATE, TAKE, Script
from holdfast.testing import PATIENCE

NAME = "key:scripts"
KEYS = (NAME, f"{{{NAME}}}:grant", f"{{{NAME}}}:queue")
TTL, WINDOW = 60_000, 20_000  # far longer than a test, on any machine

Call = Callable[..., Any]


@pytest.fixture
def call(db: Database) -> Iterator[Call]:
    def call(script: Script, *arguments: object) -> Any:
        return db.redis.eval(script.source, len(KEYS), *KEYS, *arguments)

    db.redis.delete(*KEYS)
    yield call
    db.redis.delete(*KEYS)


@contextmanager
def subscribed(db: Database, mailbox: str) -> Iterator[Callable[[], str]]:
    """Reads what comes there next."""
    with db.redis.pubsub() as pubsub:
        pubsub.subscribe(mailbox)
        assert pubsub.get_message(timeout=PATIENCE)["type"] == "subscribe"

        def read() -> str:
            message = pubsub.get_message(timeout=PATIENCE)
            assert message is not None, "nothing came"
            return str(message["data"])

        yield read


@pytest.fixture
def mail(db: Database) -> Iterator[Callable[[], str]]:
    """What comes into the mailbox ``there``."""
    with subscribed(db, "there") as read:
        yield read


def entry(token: str, mailbox: str = "nowhere", owner: str = "-") -> str:
    return f"{token} {mailbox} {TTL} {owner} about {token}"


def take(call: Call, token: str, mailbox: str = "nowhere", *, waits: bool = True, owner: str = "-") -> Any:
    return call(TAKE, entry(token, mailbox, owner), TTL, int(waits), WINDOW)


def release(call: Call, token: str, here: str = "here", mailbox: str = "nowhere") -> Any:
    return call(RELEASE, token, here, WINDOW, entry(token, mailbox))


def test_a_free_lock_is_a_string_of_its_name_with_the_token_and_the_lease(call: Call, db: Database) -> None:
    granted, fence = take(call, "a")
    assert granted == 1
    assert db.redis.get(NAME) == "a"
    assert WINDOW < db.redis.pttl(NAME) <= TTL
    assert db.redis.get(KEYS[1]).startswith(f"{fence} ")


def test_the_fence_is_at_least_the_servers_microseconds_and_grows_when_the_clock_does_not(
    call: Call, db: Database
) -> None:
    seconds, micros = db.redis.time()
    fence = int(take(call, "a")[1])
    assert fence >= seconds * 1_000_000 + micros
    release(call, "a")
    ahead = fence + 10**12  # as if the clock had been put back by eleven days
    db.redis.set(KEYS[1], ahead)
    assert int(take(call, "b")[1]) == ahead + 1


def test_asked_again_it_says_what_is_true_and_sets_the_full_lease(call: Call, db: Database) -> None:
    first = take(call, "a")
    db.redis.pexpire(NAME, WINDOW)
    assert take(call, "a") == first
    assert db.redis.pttl(NAME) > WINDOW
    take(call, "b")
    take(call, "c")
    again, ask_again_in = take(call, "b")
    assert again == 0 and 0 < ask_again_in <= TTL + 1
    assert db.queue(NAME) == ["b", "c"]


def test_a_try_leaves_nothing_when_busy(call: Call, db: Database) -> None:
    take(call, "a")
    assert take(call, "b", waits=False)[0] == 0
    assert db.queue(NAME) == []


def test_release_compares_the_token(call: Call, db: Database) -> None:
    take(call, "a")
    assert release(call, "b") == [0]
    assert db.redis.get(NAME) == "a"
    assert release(call, "a") == [1]
    assert release(call, "a") == [0]


def test_a_free_lock_leaves_its_last_grant_only_and_that_not_for_ever(call: Call, db: Database) -> None:
    fence = take(call, "a")[1]
    release(call, "a")
    assert db.redis.exists(NAME, KEYS[2]) == 0
    assert db.redis.get(KEYS[1]).startswith(f"{fence} ")
    assert 0 < db.redis.pttl(KEYS[1]) <= 86_400_000 + TTL
    assert call(LOOK) is None


def test_hand_over_inside_a_process_is_complete_in_the_reply(call: Call, db: Database) -> None:
    fence = take(call, "a", "here")[1]
    take(call, "b", "here")
    released, heir, its_fence = release(call, "a", "here")
    assert (released, heir) == (1, "b")
    assert int(its_fence) > int(fence)
    assert db.redis.get(NAME) == "b"
    assert db.redis.pttl(NAME) > WINDOW  # its own lease, not the window


def test_another_process_is_called_and_takes_its_grant_up_in_the_window(
    call: Call, db: Database, mail: Callable[[], str]
) -> None:
    take(call, "a")
    take(call, "b", "there")
    assert release(call, "a") == [1]
    assert mail() == "offered b"
    assert 0 < db.redis.pttl(NAME) <= WINDOW
    assert take(call, "b", "there")[0] == 1
    assert db.redis.pttl(NAME) > WINDOW


def test_a_waiter_that_nobody_can_call_is_dead_and_skipped(call: Call, db: Database, mail: Callable[[], str]) -> None:
    take(call, "a")
    take(call, "dead", "nowhere")
    take(call, "b", "there")
    release(call, "a")
    assert mail() == "offered b"
    assert db.redis.get(NAME) == "b"


def test_in_a_cluster_silence_says_nothing_and_the_window_decides(call: Call, db: Database) -> None:
    take(call, "a")
    take(call, "b", "on-another-node")
    call(RELEASE, "a", "here", -WINDOW, "")
    assert db.redis.get(NAME) == "b"
    assert 0 < db.redis.pttl(NAME) <= WINDOW


def test_when_a_window_has_passed_those_who_came_before_are_first(
    call: Call, db: Database, mail: Callable[[], str]
) -> None:
    take(call, "a")
    take(call, "b", "there")
    take(call, "c", "there")
    db.redis.delete(NAME)  # it ran out
    assert take(call, "c", "there")[0] == 0
    assert mail() == "offered b"
    db.redis.delete(NAME)
    assert take(call, "newcomer", waits=False)[0] == 0
    assert mail() == "offered c"
    assert take(call, "c", "there")[0] == 1


def test_the_first_in_the_queue_finds_a_free_lock_by_asking(call: Call, db: Database) -> None:
    take(call, "a")
    take(call, "b", "there")
    db.redis.delete(NAME)
    assert take(call, "b", "there")[0] == 1
    assert db.queue(NAME) == []


def test_who_leaves_the_queue_is_gone_and_passes_on_what_it_was_given(
    call: Call, db: Database, mail: Callable[[], str]
) -> None:
    take(call, "a")
    take(call, "b", "there")
    take(call, "c", "there")
    assert release(call, "b", mailbox="there") == [0]
    assert db.queue(NAME) == ["c"]
    release(call, "a")
    take(call, "d", "there")
    assert mail() == "offered c"
    assert release(call, "c", mailbox="there") == [1]
    assert mail() == "offered d"


def test_a_queue_whose_waiters_are_all_gone_vanishes_by_itself(call: Call, db: Database) -> None:
    take(call, "a")
    take(call, "b")
    assert 0 < db.redis.ttl(KEYS[2]) <= 140


def test_extend_sets_the_time_and_compares_the_token(call: Call, db: Database) -> None:
    take(call, "a")
    for _ in range(10):
        assert call(EXTEND, "a", WINDOW) == 1
    assert 0 < db.redis.pttl(NAME) <= WINDOW
    assert call(EXTEND, "b", TTL) == 0
    assert db.redis.pttl(NAME) <= WINDOW


def test_rotate_changes_token_and_fence_and_tells_the_older(call: Call, db: Database, mail: Callable[[], str]) -> None:
    fence = int(take(call, "a", "there")[1])
    rotated = call(ROTATE, "a", entry("b", "here"), TTL)
    assert int(rotated) > fence
    assert mail() == f"retaken a {fence}"
    assert call(ROTATE, "a", entry("c"), TTL) is None
    assert call(ROTATE, "a", entry("b", "here"), TTL) == rotated  # its reply was lost
    assert db.redis.get(NAME) == "b"


def test_the_same_owner_gets_its_lock_back_and_another_does_not(
    call: Call, db: Database, mail: Callable[[], str]
) -> None:
    fence = int(take(call, "a", "there", owner="turn-17")[1])
    assert take(call, "b", owner="turn-18", waits=False)[0] == 0
    granted, its_fence = take(call, "c", owner="turn-17")
    assert granted == 1 and int(its_fence) > fence
    assert mail() == f"retaken a {fence}"
    assert call(EXTEND, "a", TTL) == 0


def test_evict_tells_the_holder_and_serves_the_next(call: Call, db: Database, mail: Callable[[], str]) -> None:
    assert call(EVICT, WINDOW) == 0
    fence = take(call, "a", "there")[1]
    take(call, "b", "there")
    assert call(EVICT, WINDOW) == 1
    assert [mail(), mail()] == [f"evicted a {fence}", "offered b"]


def test_operators_see_the_grant_the_time_left_and_how_many_wait(call: Call) -> None:
    assert call(LOOK) is None
    fence = take(call, "a")[1]
    take(call, "b")
    grant, left, waiting = call(LOOK)
    assert grant.startswith(f"{fence} ") and grant.endswith(f" nowhere {TTL} - about a")
    assert 0 < left <= TTL and waiting == 1


def test_an_offer_has_somebody_else_look_again_after_the_window(
    call: Call, db: Database, mail: Callable[[], str]
) -> None:
    take(call, "a", "here")
    take(call, "b", "there")
    take(call, "c", "there")
    take(call, "d", "here")
    assert release(call, "a") == [1, "", "d"]  # who released waits himself, for another
    assert mail() == "offered b"
    take(call, "b", "there")
    assert release(call, "b", "elsewhere") == [1]
    assert mail() == "offered c"
    db.redis.publish("there", "nothing before this")
    assert mail() == "nothing before this"  # it was the process of d that was called: see below


def test_who_is_asked_to_look_again_is_of_another_process_than_the_one_that_may_be_dead(
    call: Call, db: Database, mail: Callable[[], str]
) -> None:
    with subscribed(db, "elsewhere"):
        take(call, "a", "here")
        take(call, "b", "elsewhere")
        take(call, "c", "elsewhere")
        take(call, "label-secret", "there")
        assert release(call, "a") == [1]
        assert mail() == f"look label {WINDOW}"


def test_a_detached_lock_is_nobodys_charge_and_lasts_as_long_as_it_is_told(call: Call, db: Database) -> None:
    take(call, "a", "there")
    assert call(DETACH, "b", 2 * TTL) == 0
    assert call(DETACH, "a", 2 * TTL) == 1
    assert TTL < db.redis.pttl(NAME) <= 2 * TTL
    assert call(LOOK)[0].split(" ")[2] == "-"


def test_something_without_an_end_under_the_locks_name_is_not_asked_for_all_the_time(call: Call, db: Database) -> None:
    db.redis.set(NAME, "not of our making")
    busy, again = take(call, "a")
    assert (busy, again) == (0, 30_000)


def test_what_is_known_of_a_grant_outlives_the_longest_lease(call: Call, db: Database) -> None:
    week = 7 * 86_400_000

    def outlives() -> bool:
        return bool(db.redis.pttl(KEYS[1]) > db.redis.pttl(NAME) + 80_000_000)

    call(TAKE, entry("a"), week, 1, WINDOW)
    assert outlives()
    call(EXTEND, "a", 2 * week)
    assert outlives()
    call(TAKE, entry("a"), 3 * week, 1, WINDOW)
    assert outlives()
    call(ROTATE, "a", entry("b"), 4 * week)
    call(ROTATE, "a", entry("b"), 5 * week)
    assert outlives()
    call(DETACH, "b", 6 * week)
    assert outlives()
