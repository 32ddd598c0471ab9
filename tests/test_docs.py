"""What the README and the docs show is run, and what they link to is there."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(language: str) -> list[pytest.ParameterSet]:
    found = []
    for page in PAGES:
        for number, code in enumerate(
            re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)
        ):
            found.append(pytest.param(code, id=f"{page.stem}-{number}"))
    return found


@pytest.mark.parametrize("code", blocks("python"))
def test_the_code_runs(code: str, tmp_path: Path) -> None:
    code = code.replace("/tmp/holdfast-readme", str(tmp_path / "locks"))
    outcome = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert outcome.returncode == 0, outcome.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_make_targets_that_are_named_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for named in re.findall(r"(?:^|`)make ([a-z-]+)", page.read_text(), re.MULTILINE):
        assert named in targets, named


def test_the_design_shows_the_folders_that_there_are() -> None:
    shown = re.search(r"```\n(cli/.*?)```", (ROOT / "docs" / "design.md").read_text(), re.DOTALL)
    assert shown is not None
    named = {word.rstrip("/") for line in shown[1].splitlines() for word in line[:24].split()}
    package = ROOT / "src" / "holdfast"
    there = {path.stem for path in package.iterdir() if path.stem not in ("__init__", "__main__", "__pycache__", "py")}
    assert named == there


def test_the_engine_table_of_the_readme_says_what_the_engines_declare(tmp_path: Path) -> None:
    from holdfast import Locks

    rows = {
        row[0]: row for line in (ROOT / "README.md").read_text().splitlines() if (row := line.strip("| ").split(" | "))
    }
    scopes = {
        "memory://name": "process",
        "file:///folder": "machine",
        "postgresql://…": "network",
        "redis://…": "network",
    }
    for url, scope in scopes.items():
        declared = Locks.from_url(url.replace("/folder", str(tmp_path)).replace("…", "db/0")).capabilities
        row = rows[f"`{url}`"]
        assert declared.scope == scope
        assert (row[3] == "yes") == declared.fenced
        assert (row[4] == "arrival") == declared.fair


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_make_serve_is_the_server() -> None:
    command = subprocess.run(["make", "-n", "serve"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "holdfast serve" in command


def test_the_servers_page_names_every_setting_with_its_default() -> None:
    from holdfast.server.settings import Settings

    shown = (ROOT / "docs" / "server.md").read_text()
    for name, field in Settings.model_fields.items():
        row = next((line for line in shown.splitlines() if line.startswith(f"| `{name}` |")), None)
        assert row is not None, name
        if isinstance(field.default, int | float | str):
            assert f"| {field.default} |" in row.replace("`", ""), row
