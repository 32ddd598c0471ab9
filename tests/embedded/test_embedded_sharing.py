"""Several processes share one server of one data folder; it stops when the last of them is gone."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pytest
import redis
from embedded_processes import FAST, Stage, keepers_of, processes_naming

from holdfast import embedded
from holdfast.embedded._share import LockFile, Patience
from holdfast.testing import PATIENCE


def test_six_simultaneous_starts_give_one_server(stage: Stage, kind: str) -> None:
    users = [stage.user(kind) for _ in range(6)]
    for user in users:  # all have loaded and wait for this line
        user.tell("start")
    running = [user.running() for user in users]
    assert len({each.server.pid for each in running}) == 1
    assert len({each.url for each in running}) == 1
    assert keepers_of(stage.folder) == [running[0].keeper.pid]
    for user in users:
        user.leave()
    assert running[0].has_ended()


@pytest.mark.parametrize("how", ["leave", "raise", "kill"])
def test_the_server_stops_when_the_last_user_is_gone_and_not_before(stage: Stage, kind: str, how: str) -> None:
    first, last = stage.user(kind, quiet=True), stage.user(kind, quiet=True)
    running = first.start()
    assert last.start().server.pid == running.server.pid
    first.leave(how)
    assert running.is_alive()
    last.leave(how)
    assert running.has_ended()


def test_the_server_stops_when_all_users_are_killed_at_once(stage: Stage, kind: str) -> None:
    users = [stage.user(kind) for _ in range(3)]
    running = [user.start() for user in users]
    for user in users:
        user.process.kill()
    assert running[0].has_ended()


def test_a_start_whose_starter_was_killed_ends_by_itself(bare_stage: Stage) -> None:
    stage = bare_stage
    user = stage.user("postgres")
    user.tell("start")
    user.expect("progress", "initialising")
    keepers = [stage.watch(pid) for pid in keepers_of(stage.folder)]
    user.process.kill()
    assert len(keepers) == 1
    assert keepers[0].has_ended()
    Patience(10).wait_for(lambda: not list(processes_naming(str(stage.folder))), "something lives on")


def test_a_start_goes_on_when_its_starter_is_killed_and_another_comes(bare_stage: Stage) -> None:
    starter, other = bare_stage.user("postgres"), bare_stage.user("postgres")
    starter.tell("start")
    starter.expect("progress", "initialising")
    (keeper,) = [bare_stage.watch(pid) for pid in keepers_of(bare_stage.folder)]
    keeper.kill(signal.SIGSTOP)  # until the other has come: without a user it would not wait for long
    other.tell("start")
    starter.leave("kill")
    with LockFile(lambda: os.open(bare_stage.folder / "postgres" / "users.lock", os.O_RDWR)) as users:
        Patience(PATIENCE).wait_for(lambda: not _had_for_a_moment(users), "the other did not come")
    keeper.kill(signal.SIGCONT)
    assert other.running().keeper.pid == keeper.pid


def _had_for_a_moment(lock: LockFile) -> bool:
    alone = lock.try_exclusive()
    lock.give_back()
    return alone


def test_a_forked_child_does_not_keep_the_server_alive(stage: Stage, kind: str) -> None:
    user = stage.user(kind)
    running = user.start()
    user.tell("fork")
    child = stage.watch(user.expect("forked")["pid"])
    user.leave("kill")
    assert running.has_ended()
    assert not child.has_ended(0)
    child.kill()


def test_a_forked_child_that_ends_does_not_stop_the_server(stage: Stage, kind: str) -> None:
    user = stage.user(kind)
    running = user.start()
    user.tell("fork")
    stage.watch(user.expect("forked")["pid"]).kill()
    assert stage.user(kind).start().server.pid == running.server.pid
    assert running.is_alive()


def test_the_last_close_returns_when_the_server_has_stopped(stage: Stage, kind: str) -> None:
    start = {"postgres": embedded.start_postgres, "redis": embedded.start_redis}[kind]
    first = start(stage.folder, options=FAST[kind])
    last = start(stage.folder)
    running = stage.watch_running(first.url)
    first.close()
    first.close()
    assert running.is_alive()
    last.close()
    assert running.server.has_ended(0)


def test_the_last_close_waits_for_a_keeper_that_stands_still(stage: Stage) -> None:
    server = embedded.start_redis(stage.folder, options=FAST["redis"])
    running = stage.watch_running(server.url)
    running.keeper.kill(signal.SIGSTOP)
    with ThreadPoolExecutor(1) as pool:
        closing = pool.submit(server.close)
        with pytest.raises(TimeoutError):
            closing.result(1.5)  # longer than a keeper that runs would need
        running.keeper.kill(signal.SIGCONT)
        closing.result(PATIENCE)
    assert running.server.has_ended(0)


def test_a_user_that_comes_while_the_server_stops_gets_a_new_one(stage: Stage, kind: str) -> None:
    user, newcomer = stage.user(kind), stage.user(kind)
    old = user.start()
    old.server.kill(signal.SIGSTOP)  # the stop takes as long as we like
    user.leave("kill")
    with LockFile(lambda: os.open(stage.folder / kind / "users.lock", os.O_RDWR)) as users:
        # Refused: the keeper has it and is stopping. A share we do get is given back at once.
        Patience(10).wait_for(lambda: not _shared_for_a_moment(users), "the keeper did not notice")
    newcomer.tell("start")
    old.server.kill(signal.SIGCONT)
    assert newcomer.running().is_alive()
    assert old.has_ended()


def _shared_for_a_moment(lock: LockFile) -> bool:
    shared = lock.try_shared()
    lock.give_back()
    return shared


def test_what_was_written_is_there_after_the_next_start(bare_stage: Stage) -> None:
    stage = bare_stage
    with embedded.start_postgres(stage.folder) as server:
        with psycopg.connect(server.url) as connection:
            connection.execute("create table kept as select 42 as answer")
    with embedded.start_redis(stage.folder) as server:  # both live in one data folder
        with redis.Redis.from_url(server.url) as client:
            client.set("answer", 42)
    for folder in (stage.folder, stage.folder / "postgres", stage.folder / "redis"):
        assert folder.stat().st_mode & 0o777 == 0o700
    with embedded.start_postgres(stage.folder) as server:
        with psycopg.connect(server.url) as connection:
            assert connection.execute("select answer from kept").fetchone() == (42,)
    with embedded.start_redis(stage.folder) as server:
        with redis.Redis.from_url(server.url) as client:
            assert client.get("answer") == b"42"
