"""What ``import holdfast`` costs over bare Python: at most 50 ms. ``import asyncio`` stands beside it for scale.

Whole processes are timed, in turns with bare ones; the bytecode is there before the first.
"""

from __future__ import annotations

import compileall
import subprocess
import sys
from pathlib import Path

from .figure import Figure, show
from .timing import Spin, per_call

BOUND_MS = 50.0
ROUNDS = 15


def _python(program: str) -> Spin:
    def spin(number: int) -> None:
        for _ in range(number):
            subprocess.run([sys.executable, "-c", program], check=True)

    return spin


def measure() -> list[Figure]:
    import holdfast

    compileall.compile_dir(str(Path(holdfast.__file__).parent), quiet=1)
    programs = {
        "bare": "pass",
        "import holdfast": "import holdfast",
        "from holdfast import AsyncLocks": "from holdfast import AsyncLocks",
        "import asyncio": "import asyncio",
    }

    best = per_call({name: _python(program) for name, program in programs.items()}, number=1, rounds=ROUNDS)
    bare = best.pop("bare")
    bounds = {"import holdfast": BOUND_MS}
    return [Figure(name, (took - bare) * 1e3, "ms over bare", bounds.get(name)) for name, took in best.items()]


if __name__ == "__main__":
    sys.exit(not show(measure()))
