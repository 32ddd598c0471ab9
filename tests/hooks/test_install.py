"""Holdfast's hooks go into real-looking settings and come out again; what is somebody else's stays as it was."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli import main
from holdfast.hooks import entries
from holdfast.hooks.settings_file import SettingsFile

THEIRS: dict[str, Any] = {
    "$schema": "https://json.schemastore.org/claude-code-settings.json",
    "model": "opus",
    "permissions": {"allow": ["Bash(npm run test:*)"], "deny": ["Read(./.env)"]},
    "env": {"EDITOR": "vim", "NAME": "Zoë"},
    "hooks": {
        "PreToolUse": [
            {"matcher": "Bash", "hooks": [{"type": "command", "command": "~/bin/check.sh", "timeout": 5}]},
            {"matcher": "Edit|Write", "hooks": [{"type": "http", "url": "http://127.0.0.1:9/hook/pre-tool-use"}]},
        ],
        "Stop": [{"hooks": [{"type": "command", "command": "say done # holdfast is nice"}]}],
        "PreCompact": [],
    },
    "statusLine": {"type": "command", "command": "~/.claude/status.sh"},
}
FILES: dict[str, str] = {
    "two spaces": json.dumps(THEIRS, indent=2, ensure_ascii=False) + "\n",
    "four spaces, no newline at the end": json.dumps(THEIRS, indent=4, ensure_ascii=False),
    "tabs": json.dumps(THEIRS, indent="\t", ensure_ascii=False) + "\n",
    "no hooks": '{\n  "model": "opus"\n}\n',
}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path / "claude"))
    monkeypatch.setenv("HOLDFAST_DATA_DIR", str(tmp_path / "data"))
    (tmp_path / "claude").mkdir()
    return tmp_path


@pytest.fixture
def settings(home: Path) -> Path:
    return home / "claude" / "settings.json"


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


@pytest.mark.parametrize("before", FILES.values(), ids=list(FILES))
def test_in_and_out_again_leaves_the_file_as_it_was(settings: Path, before: str) -> None:
    settings.write_text(before)
    assert main(["hooks", "install"]) == 0
    assert settings.read_text() != before
    assert main(["hooks", "uninstall"]) == 0
    assert settings.read_text() == before


def test_every_event_has_its_hook_and_the_others_keep_theirs(settings: Path, home: Path) -> None:
    settings.write_text(FILES["two spaces"])
    assert main(["hooks", "install", "--url", "http://127.0.0.1:7777"]) == 0
    after = read(settings)
    token = (home / "data" / "hook-token").read_text().strip()
    assert {name: value for name, value in after.items() if name != "hooks"} == {
        name: value for name, value in THEIRS.items() if name != "hooks"
    }
    for event, theirs in THEIRS["hooks"].items():
        assert after["hooks"][event][: len(theirs)] == theirs
    for event in entries.EVENTS:
        route = f"hook/{entries.ROUTES[event]}" if event in entries.ROUTES else "hook"
        (hook,) = after["hooks"][event][-1]["hooks"]
        if event == "SessionStart":
            assert hook["type"] == "command" and " hook " in hook["command"]
            assert token not in hook["command"]
        else:
            assert hook["type"] == "http"
            assert hook["url"] == f"http://127.0.0.1:7777/{route}"
            assert hook["headers"]["Authorization"] == f"Bearer {token}"


def test_by_command_nothing_goes_by_http_and_no_token_is_written(settings: Path) -> None:
    assert main(["hooks", "install", "--by-command"]) == 0
    assert entries.found(read(settings)) == dict.fromkeys(entries.EVENTS, "the shim")
    assert "Bearer" not in settings.read_text()


def test_installing_twice_is_installing_once(settings: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings.write_text(FILES["two spaces"])
    main(["hooks", "install"])
    once = settings.read_text()
    main(["hooks", "install"])
    assert settings.read_text() == once
    assert "already" in capsys.readouterr().out


def test_another_address_replaces_the_first(settings: Path) -> None:
    main(["hooks", "install"])
    main(["hooks", "install", "--url", "http://127.0.0.1:7777"])
    addresses = set(entries.found(read(settings)).values())
    assert all("7777" in address or address == "the shim" for address in addresses)
    assert all(len(read(settings)["hooks"][event]) == 1 for event in entries.EVENTS)


def test_without_settings_they_are_made_and_are_for_their_owner_only(settings: Path) -> None:
    assert main(["hooks", "install"]) == 0
    assert settings.stat().st_mode & 0o077 == 0
    main(["hooks", "uninstall"])
    assert read(settings) == {}


def test_a_file_that_others_could_read_is_closed_when_a_token_goes_into_it(settings: Path) -> None:
    settings.write_text("{}")
    settings.chmod(0o644)
    main(["hooks", "install"])
    assert settings.stat().st_mode & 0o777 == 0o600


def test_what_was_there_first_is_kept(settings: Path) -> None:
    settings.write_text(FILES["tabs"])
    main(["hooks", "install"])
    main(["hooks", "install", "--url", "http://127.0.0.1:7777"])
    assert settings.with_name("settings.json.before-holdfast").read_text() == FILES["tabs"]


def test_status_says_what_is_there(settings: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["hooks", "status"]) == 1
    main(["hooks", "install"])
    assert main(["hooks", "status"]) == 0
    shown = capsys.readouterr().out
    assert "http://127.0.0.1:8765/hook/stop" in shown and "the shim" in shown


@pytest.mark.parametrize("text", ["{ // a comment\n}", "[]", '{"hooks": []}', "nonsense"])
def test_what_is_not_understood_is_left_alone(settings: Path, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    settings.write_text(text)
    for action in ("install", "uninstall"):
        assert main(["hooks", action]) == 1
        assert "left as it is" in capsys.readouterr().err
    assert settings.read_text() == text


def test_a_link_stays_a_link(settings: Path, home: Path) -> None:
    elsewhere = home / "dotfiles.json"
    elsewhere.write_text("{}")
    settings.symlink_to(elsewhere)
    main(["hooks", "install"])
    assert settings.is_symlink()
    assert entries.found(read(elsewhere))


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
    subprocess.run(["git", "-C", str(folder), *identity, *arguments], check=True, capture_output=True)


def tracked(file: Path) -> None:
    git(file.parent.parent, "add", "-f", ".")
    git(file.parent.parent, "commit", "-qm", "x")


def ignored(file: Path) -> None:
    (file.parent.parent / ".gitignore").write_text(".claude/settings.local.json\n")


def neither(file: Path) -> None: ...


@pytest.mark.parametrize(("made", "safe"), [(tracked, False), (neither, False), (ignored, True)])
def test_no_token_goes_where_git_may_see_it(home: Path, made: Callable[[Path], None], safe: bool) -> None:
    project = home / "shop"
    file = project / ".claude" / "settings.local.json"
    file.parent.mkdir(parents=True)
    file.write_text("{}")
    git(home, "init", "-q", str(project))
    made(file)
    assert main(["hooks", "install", "--project", str(project)]) == 0
    assert ("Bearer" in file.read_text()) is safe
    assert set(entries.found(read(file))) == set(entries.EVENTS)
    assert not (home / "claude" / "settings.json").exists()
    assert main(["hooks", "uninstall", "--project", str(project)]) == 0
    assert read(file) == {}


def test_a_second_saver_reads_the_first_ones_result(settings: Path) -> None:
    """Many change the file at once; each adds a key, and all are there at the end."""
    code = (
        "import sys; from pathlib import Path; from holdfast.hooks.settings_file import SettingsFile\n"
        "for n in range(20): SettingsFile(Path(sys.argv[1])).change("
        "lambda before: {**before, f'{sys.argv[2]}-{n}': 1}, private=False)"
    )
    savers = [subprocess.Popen([sys.executable, "-c", code, str(settings), str(p)]) for p in range(4)]
    assert [saver.wait() for saver in savers] == [0] * 4
    assert len(read(settings)) == 80


def test_a_change_that_fails_leaves_the_file_whole(settings: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.write_text(FILES["two spaces"])

    def fails(*_: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(OSError, match="disk full"):
        SettingsFile(settings).change(lambda before: {**before, "x": 1}, private=False)
    assert settings.read_text() == FILES["two spaces"]


def test_the_command_that_is_written_works(home: Path, settings: Path) -> None:
    """As the client runs it: by a shell, from anywhere, with the event on its standard input."""
    main(["hooks", "install", "--url", "http://127.0.0.1:1"])
    command = read(settings)["hooks"]["SessionStart"][0]["hooks"][0]["command"]
    event = {"session_id": "s", "hook_event_name": "SessionStart"}
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    outcome = subprocess.run(
        command, shell=True, input=json.dumps(event), text=True, capture_output=True, cwd="/", env=environment
    )
    assert (outcome.returncode, outcome.stdout) == (0, "")
    (spooled,) = (home / "data" / "spool" / "127.0.0.1:1").glob("[0-9]*")
    assert json.loads(spooled.read_text()) == event
