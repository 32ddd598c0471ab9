"""Settings: where they come from, which wins, and what a mistake says."""

from pathlib import Path

import pytest

from holdfast import InvalidOption
from holdfast.settings import SessionLockSettings, current, forget, load

SECTION = "[session.lock]\n"


@pytest.fixture(autouse=True)
def _elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


def test_without_anything_configured_they_are_the_documented_ones() -> None:
    settings = load(SessionLockSettings, environ={})
    assert (settings.timeout_seconds, settings.blocking_timeout_seconds, settings.key_prefix) == (30, 5.0, "sesslock")


def test_the_environment_wins_over_the_file(tmp_path: Path) -> None:
    (tmp_path / "holdfast.toml").write_text(SECTION + "timeout_seconds = 60\nkey_prefix = 'turns'\n[other]\nx = 1\n")
    environ = {"HOLDFAST_SESSION_LOCK_TIMEOUT_SECONDS": "90.5", "HOLDFAST_SESSION_LOCK_BLOCKING_TIMEOUT_SECONDS": "0"}
    settings = load(SessionLockSettings, environ=environ)
    assert (settings.timeout_seconds, settings.blocking_timeout_seconds, settings.key_prefix) == (90.5, 0, "turns")


def test_the_file_is_named_by_the_caller_the_environment_or_the_folder(tmp_path: Path) -> None:
    for name, prefix in (("holdfast.toml", "folder"), ("named.toml", "named"), ("given.toml", "given")):
        (tmp_path / name).write_text(f"{SECTION}key_prefix = '{prefix}'")
    assert load(SessionLockSettings, environ={}).key_prefix == "folder"
    environ = {"HOLDFAST_CONFIG": "named.toml"}
    assert load(SessionLockSettings, environ=environ).key_prefix == "named"
    assert load(SessionLockSettings, file="given.toml", environ=environ).key_prefix == "given"
    with pytest.raises(InvalidOption, match=r"gone\.toml.*HOLDFAST_CONFIG"):
        load(SessionLockSettings, environ={"HOLDFAST_CONFIG": "gone.toml"})


@pytest.mark.parametrize(
    ("toml", "says"),
    [
        ("timeout_seconds = 0", r"holdfast\.toml: session\.lock\.timeout_seconds=0: .*more than 0"),
        ("timeout_seconds = '30 s'", r"timeout_seconds='30 s'"),
        ("timeout_seconds = true", r"timeout_seconds=True"),
        ("timeout_seconds = nan", r"timeout_seconds=nan"),
        ("blocking_timeout_seconds = -1", r"session\.lock\.blocking_timeout_seconds=-1"),
        ("blocking_timeout_seconds = inf", r"blocking_timeout_seconds=inf"),
        ("key_prefix = 'a:b'", r"session\.lock\.key_prefix='a:b'"),
        ("key_prefix = 7", r"session\.lock\.key_prefix=7"),
        ("channels = ['web', 3]", r"session\.lock\.channels"),
        ("url = 7", r"session\.lock\.url: give a string"),
        ("timeout = 30", r"session\.lock\.timeout: there is no such setting; there are timeout_seconds"),
        ("timeout_seconds = ", r"holdfast\.toml: Invalid value"),
    ],
)
def test_a_mistake_names_its_field_and_its_file(tmp_path: Path, toml: str, says: str) -> None:
    (tmp_path / "holdfast.toml").write_text(SECTION + toml)
    with pytest.raises(InvalidOption, match=says):
        load(SessionLockSettings, environ={})


def test_a_mistake_in_the_environment_names_its_variable() -> None:
    for variable, value in (("TIMEOUT_SECONDS", "soon"), ("KEY_PREFIX", ""), ("TIMEOUT", "30")):
        with pytest.raises(InvalidOption, match=f"HOLDFAST_SESSION_LOCK_{variable}"):
            load(SessionLockSettings, environ={f"HOLDFAST_SESSION_LOCK_{variable}": value})


def test_a_section_that_is_no_table_and_a_mistake_in_code(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match=r"session\.lock\.timeout_seconds=-1"):
        SessionLockSettings(timeout_seconds=-1)
    (tmp_path / "holdfast.toml").write_text("session = 1")
    with pytest.raises(InvalidOption, match="session is no table"):
        load(SessionLockSettings, environ={})


def test_an_address_is_a_secret() -> None:
    assert "hunter2" not in repr(SessionLockSettings(url="redis://:hunter2@db"))


def test_what_is_current_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    forget()
    monkeypatch.setenv("HOLDFAST_SESSION_LOCK_KEY_PREFIX", "turns")
    assert current(SessionLockSettings).key_prefix == "turns"
    monkeypatch.setenv("HOLDFAST_SESSION_LOCK_KEY_PREFIX", "later")
    assert current(SessionLockSettings).key_prefix == "turns"
    forget()
    assert current(SessionLockSettings).key_prefix == "later"
    forget()
