"""What tests hold against time: waits count, a machine that stands still does not."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from holdfast.testing import PATIENCE, Stopwatch

TIMED = """
import sys
from holdfast.testing import Stopwatch
watch = Stopwatch()
print("running", flush=True)
sys.stdin.readline()
print(watch.awake, watch.elapsed)  # in this order: what comes between the two must not count as awake
"""


FORKED = """
import os, sys, time
from holdfast.testing import PATIENCE, Stopwatch
watch = Stopwatch()
if os.fork() == 0:
    ends = time.monotonic() + PATIENCE
    while watch.awake < 0.2 and time.monotonic() < ends:
        time.sleep(0.02)
    os._exit(0 if watch.awake >= 0.2 else 1)
sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
"""


def test_a_wait_counts_in_a_forked_child_too() -> None:
    subprocess.run([sys.executable, "-c", FORKED], check=True, timeout=2 * PATIENCE)


def test_a_wait_counts() -> None:
    watch, ends = Stopwatch(), time.monotonic() + PATIENCE
    while watch.awake < 0.2:
        assert time.monotonic() < ends
        time.sleep(0.1)
    assert watch.awake <= watch.elapsed  # read in this order
    watch.restart()
    assert watch.awake < 0.2


def test_standing_still_does_not() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", TIMED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as timed:
        assert timed.stdin is not None and timed.stdout is not None
        assert timed.stdout.readline() == "running\n"
        timed.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, timed.pid, os.WSTOPPED | os.WNOWAIT)
        assert Path(f"/proc/{timed.pid}/stat").read_text().rpartition(") ")[2].startswith("T")
        time.sleep(0.5)
        timed.send_signal(signal.SIGCONT)
        awake, elapsed = map(float, timed.communicate("\n", timeout=PATIENCE)[0].split())
    assert elapsed >= 0.5
    assert elapsed - awake > 0.4
