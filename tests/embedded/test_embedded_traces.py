"""When it has stopped, nothing is left outside the data folder."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from embedded_processes import FAST, Running, Stage

from holdfast import embedded


@pytest.fixture
def temporary() -> Iterator[Path]:
    """A folder for the server's temporary files: short, and writable for whatever account it runs as."""
    folder = Path(tempfile.mkdtemp(prefix="t-", dir="/tmp"))
    folder.chmod(0o1777)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def deep(stage: Stage) -> Path:
    """A data folder whose path is too long for a socket, and has characters that addresses do not like."""
    return stage.folder / ("long " * 20) / "50% off, & more?#"


def uses_dev_shm(running: Running) -> bool:
    """Whether it has files there, which nobody would remove if it were killed."""
    return "/dev/shm/" in Path(f"/proc/{running.server.pid}/maps").read_text()


def test_nothing_is_left_after_the_stop(stage: Stage, kind: str, temporary: Path) -> None:
    user = stage.user(kind, env={"TMPDIR": str(temporary)})
    running = user.start()
    assert not uses_dev_shm(running)
    user.leave()
    assert running.has_ended()
    assert list(temporary.iterdir()) == []
    assert not any(path.is_socket() for path in stage.folder.rglob("*"))
    assert os.listdir(stage.folder.parent) == [stage.folder.name]


def test_a_path_too_long_for_a_socket_works_and_leaves_nothing(
    stage: Stage, kind: str, temporary: Path, deep: Path
) -> None:
    users = [stage.user(kind, deep, env={"TMPDIR": str(temporary)}) for _ in range(2)]
    running = users[0].start()
    (private,) = temporary.iterdir()
    assert private.stat().st_mode & 0o777 == 0o700
    assert users[1].start().server.pid == running.server.pid
    for user in users:
        user.leave()
    assert running.has_ended()
    assert list(temporary.iterdir()) == []


def test_a_kill_of_everything_leaves_only_what_the_next_start_uses_again(
    stage: Stage, kind: str, temporary: Path, deep: Path
) -> None:
    user = stage.user(kind, deep, env={"TMPDIR": str(temporary)})
    killed = user.start()
    for victim in (stage.watch(user.process.pid), killed.keeper, killed.server):
        victim.kill()
    assert killed.has_ended()
    next_user = stage.user(kind, deep, env={"TMPDIR": str(temporary)})
    again = next_user.start()
    assert again.url == killed.url
    next_user.leave()
    assert again.has_ended()
    assert list(temporary.iterdir()) == []


def test_odd_characters_in_the_path_reach_the_clients_unharmed(stage: Stage) -> None:
    import psycopg
    import redis

    odd = stage.folder / "50% & ü?#="
    with embedded.start_postgres(odd, options=FAST["postgres"] | {"port": "5499"}) as server:
        assert "/postgres/" not in server.url
        with psycopg.connect(server.url) as connection:
            assert connection.execute("show unix_socket_directories").fetchone() == (f'"{odd}/postgres"',)
    with embedded.start_redis(odd) as server, redis.Redis.from_url(server.url) as client:
        assert client.config_get("dir") == {"dir": f"{odd}/redis/data"}
