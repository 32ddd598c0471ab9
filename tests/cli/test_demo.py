"""The demo shows what it says it shows."""

import re
import subprocess
import sys

import pytest

from holdfast import __version__
from holdfast.cli import main


def test_the_demo_loses_updates_without_a_lock_and_none_with_one(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--updates", "50"]) == 0
    shown = capfd.readouterr().out
    without, with_lock = re.findall(r"(\d+) of 200 arrived, (.+?) \(", shown)
    assert int(without[0]) < 200 and without[1] == f"{200 - int(without[0])} updates lost"
    assert with_lock == ("200", "none lost")
    assert re.findall(r"the next one is in after [\d.]+ ms", shown)


def test_the_command_is_installed_and_says_what_it_can() -> None:
    for command in ([sys.executable, "-m", "holdfast"], [f"{sys.prefix}/bin/holdfast"]):
        version = subprocess.run([*command, "--version"], capture_output=True, text=True, check=True).stdout
        assert version == f"holdfast {__version__}\n"
    assert "demo" in subprocess.run([*command, "--help"], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("arguments", [[], ["nonsense"], ["demo", "--processes", "0"], ["demo", "--updates", "many"]])
def test_a_bad_call_is_told_and_ends_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert "usage: holdfast" in capsys.readouterr().err
