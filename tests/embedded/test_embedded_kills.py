"""Whatever is killed -9, nothing it leaves behind blocks the next start; process ids never count."""

import os
import signal
import subprocess

import psycopg
import pytest
from embedded_processes import FAST, Stage, keepers_of

from holdfast import embedded
from holdfast.embedded._share import Patience


@pytest.mark.parametrize("victims", ["keeper", "server", "keeper server", "user keeper server"])
def test_a_start_after_a_kill_gives_a_working_server(stage: Stage, kind: str, victims: str) -> None:
    user = stage.user(kind)
    killed = user.start()
    by_name = {"keeper": killed.keeper, "server": killed.server, "user": stage.watch(user.process.pid)}
    for name in victims.split():
        by_name[name].kill()
    again = stage.user(kind).start()
    assert again.server.pid != killed.server.pid
    assert again.is_alive()
    assert again.url == killed.url  # a user that survived may connect again
    assert killed.has_ended()
    assert keepers_of(stage.folder) == [again.keeper.pid]


def test_a_killed_keeper_takes_the_server_along(stage: Stage, kind: str) -> None:
    running = stage.user(kind).start()
    running.keeper.kill()
    assert running.server.has_ended()  # though it still has a user


def test_nobody_joins_a_server_that_goes_down_with_its_killed_keeper(stage: Stage) -> None:
    # Redis notices the request to end once per its tick, of which this one has one a second; until then it answers.
    old = stage.user("redis", options={"hz": "1"}).start()
    starters = [stage.user("redis") for _ in range(3)]
    old.keeper.kill()
    assert old.keeper.has_ended()
    for starter in starters:
        starter.tell("start")
    assert len({starter.running().server.pid for starter in starters} | {old.server.pid}) == 2
    assert old.server.has_ended()


def test_a_keeper_ends_with_its_killed_server(stage: Stage, kind: str) -> None:
    running = stage.user(kind).start()
    running.server.kill()
    assert running.keeper.has_ended()


def test_a_keeper_asked_to_end_stops_the_server_properly(stage: Stage, kind: str) -> None:
    running = stage.user(kind).start()
    running.keeper.kill(signal.SIGTERM)
    assert running.has_ended()
    last_words = {"postgres": "database system is shut down", "redis": "Redis is now ready to exit"}[kind]
    assert last_words in (stage.folder / kind / "server.log").read_text()


def test_committed_rows_survive_the_kill_of_everything(bare_stage: Stage) -> None:
    stage = bare_stage
    user = stage.user("postgres", options={"fsync": "on"})
    running = user.start()
    with psycopg.connect(running.url) as connection:
        connection.execute("create table kept as select 42 as answer")
    for victim in (stage.watch(user.process.pid), running.keeper, running.server):
        victim.kill()
    with embedded.start_postgres(stage.folder) as server, psycopg.connect(server.url) as connection:
        assert connection.execute("select answer from kept").fetchone() == (42,)


def test_a_reused_process_id_does_not_count_as_a_running_server(stage: Stage) -> None:
    user = stage.user("postgres")
    killed = user.start()
    # The server first, or it might have the time to end tidily, with the others, and leave no note.
    for victim in (killed.server, killed.keeper, stage.watch(user.process.pid)):
        victim.kill()
    assert killed.has_ended()
    home = stage.folder / "postgres"
    owner = home.stat()
    # A living process of the same account gets the noted id: PostgreSQL alone would refuse to start.
    account = {"user": owner.st_uid, "group": owner.st_gid, "extra_groups": []} if os.geteuid() == 0 else {}
    with subprocess.Popen(["sleep", "60"], **account) as other:  # type: ignore[call-overload]
        try:
            for note in (home / "cluster/postmaster.pid", home / ".s.PGSQL.5432.lock"):
                _, *rest = note.read_text().splitlines(keepends=True)
                note.write_text("".join([f"{other.pid}\n", *rest]))
            assert stage.user("postgres").start().is_alive()
            assert other.poll() is None
        finally:
            other.kill()


def test_a_kill_while_the_cluster_is_made_leaves_no_half_cluster(bare_stage: Stage) -> None:
    stage = bare_stage
    user = stage.user("postgres")
    user.tell("start")
    user.expect("progress", "initialising")
    (keeper,) = [stage.watch(pid) for pid in keepers_of(stage.folder)]
    home = stage.folder / "postgres"
    Patience(10).wait_for(lambda: any(home.glob("new-cluster-*/PG_VERSION")), "initdb did not begin")
    keeper.kill(signal.SIGSTOP)  # whatever initdb gets done meanwhile, it is not put to use
    victims = stage.watch_all()  # user, keeper, initdb and its children
    assert len(victims) >= 2
    for victim in victims:
        victim.kill()
    assert not (home / "cluster").exists()
    assert stage.user("postgres").start().is_alive()
    assert list(home.glob("new-cluster-*")) == []


def test_no_second_server_starts_beside_a_surviving_process_of_a_killed_one(stage: Stage) -> None:
    running = stage.user("postgres").start()
    with psycopg.connect(running.url) as connection:
        backend = stage.watch(connection.info.backend_pid)
        backend.kill(signal.SIGSTOP)  # it cannot notice that its postmaster dies
        running.keeper.kill()
        running.server.kill()
        assert running.has_ended()
        with pytest.raises(embedded.EmbeddedError, match="still ending"):
            embedded.start_postgres(stage.folder, wait=2)
        backend.kill()
        assert stage.user("postgres").start().is_alive()
        connection.close()


def test_a_hanging_server_is_reported_with_its_log_within_the_deadline(stage: Stage) -> None:
    running = stage.user("redis").start()
    running.server.kill(signal.SIGSTOP)
    with pytest.raises(embedded.EmbeddedError, match=r"does not answer(.|\n)*ready to accept connections"):
        embedded.start_redis(stage.folder, wait=2)
    running.server.kill(signal.SIGCONT)
    with embedded.start_redis(stage.folder):
        assert running.is_alive()


def test_a_server_that_cannot_start_is_reported_with_its_last_words(stage: Stage) -> None:
    with pytest.raises(embedded.EmbeddedError, match="no_such_setting"):
        embedded.start_postgres(stage.folder, options=FAST["postgres"] | {"no_such_setting": "1"})
    with embedded.start_postgres(stage.folder, options=FAST["postgres"]):
        pass
