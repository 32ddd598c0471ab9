"""Transcripts: what is whole is read, what is torn is passed over, and nothing outside the folder is ever opened."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from crew import GOLDEN

from holdfast.agents import transcript
from holdfast.agents.transcript import LastEntry, Refused, last_entry


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "projects"
    folder.mkdir()
    return folder


def assistant(*texts: str, **more: Any) -> str:
    return json.dumps(
        {"type": "assistant", "message": {"content": [{"type": "text", "text": t} for t in texts]}, **more}
    )


USER = json.dumps({"type": "user", "message": {"content": "go on"}})
TOOL = json.dumps({"type": "assistant", "message": {"content": [{"type": "tool_use", "id": "t"}]}})


def test_the_recorded_transcript(root: Path) -> None:
    (root / "t.jsonl").write_bytes((GOLDEN / "transcript.jsonl").read_bytes())
    last = LastEntry("All done, hello.", model="claude-opus-4-8", client_version="2.1.197", git_branch="HEAD")
    assert last_entry(str(root / "t.jsonl"), root) == last


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([USER, assistant("hello")], "hello"),
        ([USER, assistant("one", "two")], "one\ntwo"),
        ([assistant("old"), USER], None),
        ([assistant("old"), USER, TOOL], None),
        ([USER, assistant("hello"), '{"type": "assistant", "mess'], "hello"),
        ([USER, assistant("hello"), '{"type": "system-something-new"}', "[1]", "null", ""], "hello"),
        ([USER, assistant("hello"), assistant("aside", isSidechain=True)], "hello"),
        ([USER, '{"type": "assistant"}'], None),
        ([USER, '{"type": "assistant", "message": {"content": "plain"}}'], "plain"),
        (["[" * 100_000], None),
        ([], None),
    ],
)
def test_what_the_agent_said_last(root: Path, lines: list[str], words: str | None) -> None:
    (root / "t.jsonl").write_text("\n".join(lines))
    assert last_entry(str(root / "t.jsonl"), root).said == words


def test_only_the_end_of_a_large_file_is_read(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transcript, "MOST_BYTES", 1000)
    path = root / "t.jsonl"
    path.write_text("\n".join([assistant("x" * 5000), assistant("the end")]))
    assert last_entry(str(path), root).said == "the end"
    path.write_text(assistant("x" * 5000))
    assert last_entry(str(path), root).said is None


def test_what_leads_outside_is_refused(root: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret.jsonl"
    secret.write_text(assistant("secret"))
    (root / "link.jsonl").symlink_to(secret)
    (root / "inner").symlink_to(tmp_path)
    (root / "folder").mkdir()
    os.mkfifo(root / "fifo")
    for path in (
        str(secret),
        f"{root}/../secret.jsonl",
        f"{root}/inner/secret.jsonl",
        f"{root}/link.jsonl",
        f"{root}/folder",
        f"{root}/fifo",
        str(root),
        "relative.jsonl",
        "/etc/passwd",
        "",
        f"{root}/nul\0.jsonl",
        f"{root}-evil/x",
    ):
        with pytest.raises(Refused):
            last_entry(path, root)


def test_a_file_that_is_not_there_yet_is_told_apart(root: Path) -> None:
    with pytest.raises(FileNotFoundError):
        last_entry(str(root / "none.jsonl"), root)


def test_a_root_behind_a_link_is_the_same_root(root: Path, tmp_path: Path) -> None:
    (root / "t.jsonl").write_text(assistant("hello"))
    link = tmp_path / "link"
    link.symlink_to(root)
    assert last_entry(str(link / "t.jsonl"), link).said == "hello"
    assert last_entry(str(root / "t.jsonl"), link).said == "hello"
