"""``python -m benchmarks [name …]``: measures all, or those named; exits with 1 if a bound was missed."""

from __future__ import annotations

import sys
import time
from importlib import import_module

from .figure import show

NAMES = (
    "imports", "memory", "file", "contention", "burst", "waiter", "postgres", "lease", "redis", "scheduler", "server",
)  # fmt: skip


def main(names: list[str]) -> int:
    unknown = set(names) - set(NAMES)
    if unknown:
        print(f"no such benchmark: {', '.join(sorted(unknown))}; there are {', '.join(NAMES)}", file=sys.stderr)
        return 2
    missed = []
    for name in names or NAMES:
        module = import_module(f"benchmarks.{name}")
        print(f"{name}: {(module.__doc__ or '').partition(chr(10))[0]}", flush=True)
        start = time.monotonic()
        if not show(module.measure()):
            missed.append(name)
        print(f"    ({time.monotonic() - start:.0f} s)\n", flush=True)
    print(f"missed a bound: {', '.join(missed)}" if missed else "every bound was met")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
