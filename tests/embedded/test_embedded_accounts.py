"""It works as root and as an ordinary user, opens no folder to others, and lets only the owner and root in."""

import os
import pwd
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from embedded_processes import Running, Stage, _credentials, python_for

from holdfast import embedded
from holdfast.embedded._programs import postgres_folder, postgres_version

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another account")
ORDINARY = "daemon"


def modes(folder: Path) -> dict[Path, tuple[int, int, int]]:
    status = {parent: os.stat(parent) for parent in folder.parents}
    return {parent: (each.st_mode, each.st_uid, each.st_gid) for parent, each in status.items()}


def account_of(running: Running) -> str:
    return pwd.getpwuid(int(running.server.status("Uid")[0])).pw_name


def capabilities_of(running: Running) -> int:
    return int(running.server.status("CapEff")[0], 16) | int(running.server.status("CapAmb")[0], 16)


def as_account(account: str) -> dict[str, Any]:
    return {"account": account, "python": python_for(account)}


def psql(url: str, query: str, account: str | None = None) -> "subprocess.CompletedProcess[str]":
    command = [str(postgres_folder(None) / "psql"), url, "-XAtc", query]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd="/", **_credentials(account))


@as_root
def test_an_ordinary_user_can_use_it(bare_stage: Stage, kind: str) -> None:
    bare_stage.folder.mkdir()
    shutil.chown(bare_stage.folder, ORDINARY)
    bare_stage.folder.parent.chmod(0o711)
    users = [bare_stage.user(kind, **as_account(ORDINARY)) for _ in range(2)]
    running = users[0].start()
    assert users[1].start().server.pid == running.server.pid
    assert account_of(running) == ORDINARY
    assert bare_stage.user(kind).start().server.pid == running.server.pid  # root may join
    for user in bare_stage.users:
        user.leave("kill")
    assert running.has_ended()
    # Started by root, the folder's server runs as the folder's owner, who can start it again later.
    root = bare_stage.user(kind)
    again = root.start()
    assert account_of(again) == ORDINARY
    root.leave()
    assert bare_stage.user(kind, **as_account(ORDINARY)).start().is_alive()


@as_root
def test_root_with_private_parent_folders_changes_none_of_them(bare_stage: Stage, kind: str) -> None:
    private = bare_stage.folder / "private"
    private.mkdir(mode=0o700, parents=True)
    data = private / "data"
    before = modes(data)
    user = bare_stage.user(kind, data)
    running = user.start()
    assert modes(data) == before
    assert account_of(running) in ("postgres", "redis", "nobody")
    assert capabilities_of(running) in (1 << 1, 1 << 2)  # one that passes through folders, nothing else
    running.keeper.kill()  # the capability must not undo that the server ends with its keeper
    assert running.server.has_ended()
    assert bare_stage.user(kind, data).start().is_alive()
    assert modes(data) == before


@as_root
def test_root_gives_no_capability_where_none_is_needed(stage: Stage, kind: str) -> None:
    stage.folder.parent.chmod(0o711)
    running = stage.user(kind).start()
    python_for("nobody")  # skips where the programs themselves are below a private folder
    assert capabilities_of(running) == 0


@as_root
@pytest.mark.skipif(not shutil.which("setpriv"), reason="needs setpriv to take capabilities away")
def test_root_as_a_default_container_has_it_can_use_it(bare_stage: Stage) -> None:
    private = bare_stage.folder / "private"
    private.mkdir(mode=0o700, parents=True)
    # The capabilities Docker gives by default.
    names = "chown dac_override fowner fsetid kill setgid setuid setpcap net_bind_service net_raw sys_chroot mknod"
    bounding = "-all," + ",".join(f"+{name}" for name in [*names.split(), "audit_write", "setfcap"])
    before = ["setpriv", "--no-new-privs", f"--bounding-set={bounding}"]
    running = bare_stage.user("postgres", private / "data", before=before).start()
    assert capabilities_of(running) == 1 << 1


@as_root
def test_nobody_else_is_let_in_even_if_the_folder_is_opened(bare_stage: Stage) -> None:
    user = bare_stage.user("postgres", options={"unix_socket_permissions": "0777"})
    if int(postgres_version(postgres_folder(None))) < 16:  # cannot tell accounts apart well enough, so it is not opened
        user.tell("start")
        assert "must stay 0700" in user.expect("refused")["text"]
        return
    running = user.start()
    for folder in (bare_stage.folder / "postgres", bare_stage.folder, bare_stage.folder.parent):
        folder.chmod(0o711)
    python_for(ORDINARY)  # skips where that account could not run psql either
    assert psql(running.url, "create role someone login").returncode == 0
    owner = pwd.getpwuid((bare_stage.folder / "postgres").stat().st_uid).pw_name
    for account in (owner, None):  # None is root
        assert (
            psql(running.url.replace("//postgres@", "//someone@"), "select current_user", account).stdout == "someone\n"
        )
    refused = psql(running.url, "select 1", ORDINARY)
    assert refused.returncode != 0
    assert "Peer authentication failed" in refused.stderr


@as_root
def test_a_folder_of_somebody_else_is_refused(bare_stage: Stage, kind: str) -> None:
    bare_stage.folder.parent.chmod(0o711)
    bare_stage.folder.mkdir(mode=0o755)
    (bare_stage.folder / kind).mkdir()
    user = bare_stage.user(kind, **as_account(ORDINARY))
    user.tell("start")
    assert "belongs to root" in user.expect("refused")["text"]


@as_root
def test_root_follows_no_link_planted_in_the_folder(bare_stage: Stage) -> None:
    victim = bare_stage.folder.parent / "victim"
    victim.write_text("root's own")
    home = bare_stage.folder / "redis"
    home.mkdir(parents=True)
    shutil.chown(home, ORDINARY)
    (home / "users.lock").symlink_to(victim)
    with pytest.raises((embedded.EmbeddedError, OSError)):
        embedded.start_redis(bare_stage.folder)
    assert victim.stat().st_uid == 0
