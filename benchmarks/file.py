"""An uncontended hold and release of a lock file, over ``filelock``'s, call by call in turns. No bound.

``filelock`` is given its best case, one lock object used again and again. It keeps no fence and writes no record.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import filelock

from holdfast import Locks

from .figure import Figure, show
from .timing import call_by_call

NUMBER, ROUNDS = 300, 9


def measure() -> list[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        peer = filelock.FileLock(f"{folder}/peer.lock")
        with Locks.from_url(Path(folder).as_uri()) as locks:

            def ours() -> None:
                with locks.hold("nightly-report"):
                    pass

            def theirs() -> None:
                with peer:
                    pass

            best = call_by_call({"ours": ours, "theirs": theirs}, NUMBER, ROUNDS)
    return [
        Figure("file hold + release", best["ours"] * 1e6, "µs"),
        Figure("  filelock", best["theirs"] * 1e6, "µs"),
        Figure("file hold + release, over filelock", best["ours"] / best["theirs"], "×"),
    ]


if __name__ == "__main__":
    sys.exit(not show(measure()))
