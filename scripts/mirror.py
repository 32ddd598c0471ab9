"""Writes the sync client from the async one, file for file. ``--check`` only says where the two have drifted apart."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

_PARTS = ["part.py", "declared.py", "leases.py", "turns.py", "endings.py"]
ROOT = Path(__file__).resolve().parent.parent / "src" / "holdfast"
MIRRORED = [
    (ROOT / "_async", ROOT / "_sync", ["held.py", "blocks.py", "locks.py"]),
    (ROOT / "testing" / "_async", ROOT / "testing" / "_sync", _PARTS),
]

# Whole words only. What needs more than this belongs into flow.py or a hand-written pair of files.
WORDS = {
    r"async def": "def",
    r"async with": "with",
    r"async for": "for",
    r"await ": "",
    r"__aenter__": "__enter__",
    r"__aexit__": "__exit__",
    r"run_async": "run",
    r"finish_async": "finish",
    r"TaskWakeup": "ThreadWakeup",
    r"Async(?=[A-Z])": "",
    r"_async": "_sync",
    r"asynchronous": "synchronous",
}
AWAITABLE = re.compile(r"(?:Awaitable\[|Coroutine\[Any, Any, )((?:[^\[\]]|\[[^\[\]]*\])*)\]")
IMPORTED_AWAITABLE = re.compile(r"^(from collections\.abc import )Awaitable, ", re.MULTILINE)


def mirror(source: str, name: str) -> str:
    text = AWAITABLE.sub(r"\1", IMPORTED_AWAITABLE.sub(r"\1", source))
    for word, replacement in WORDS.items():
        text = re.sub(rf"(?<![A-Za-z0-9]){word}", replacement, text)
    header = f"# Written by scripts/mirror.py from _async/{name}. Change that file, then run: make mirror\n"
    return _formatted(header + text, name)


def _formatted(text: str, name: str) -> str:
    for command in (["check", "--fix", "--quiet", "--select", "I,F401"], ["format", "--quiet"]):
        arguments = [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(ROOT / name), "-"]
        text = subprocess.run(arguments, input=text, capture_output=True, text=True, check=True).stdout
    return text


def main() -> int:
    check = "--check" in sys.argv[1:]
    drifted = []
    for written, mirrored, names in MIRRORED:
        for name in names:
            if not (written / name).exists():
                continue
            text = mirror((written / name).read_text(), name)
            target = mirrored / name
            if target.exists() and target.read_text() == text:
                continue
            drifted.append(str(target.relative_to(ROOT.parent.parent)))
            if not check:
                target.write_text(text)
    for path in drifted:
        print(f"{path}: {'differs from its mirror image; run: make mirror' if check else 'written'}")
    return 1 if check and drifted else 0


if __name__ == "__main__":
    raise SystemExit(main())
