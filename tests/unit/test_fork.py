"""A mutex that another thread held at the fork must not stay shut in the child. Here it is held for certain."""

import subprocess
import sys

import pytest

from holdfast.testing import PATIENCE

SCRIPT = """
import os
import threading
from holdfast import Locks, order, owner, ticket
from holdfast.engines import memory
from holdfast.engines.file import descriptors, engine
locks = Locks.from_url({url!r})
with locks.hold("a"):
    pass
other = threading.Thread(target={mutex}.acquire)  # by another thread: some are re-entrant
other.start()
other.join()
if os.fork() == 0:
    with locks.hold("a"), locks.hold("b"):
        Locks.from_url({url!r})
        os.write(1, b"child worked")
        os._exit(0)
os.wait()
"""


@pytest.mark.parametrize(
    ("url", "mutex"),
    [
        ("memory://fork", "locks._client._mutex"),
        ("memory://fork", "locks._client.engine._space.mutex"),
        ("memory://fork", "ticket._transitions"),
        ("memory://fork", "order._seen.mutex"),
        ("memory://fork", "memory._spaces.mutex"),
        ("file://{tmp}", "locks._client.engine._folder.mutex"),
        ("file://{tmp}", "engine._folders.mutex"),
    ],
)
def test_no_mutex_stays_shut_in_a_child(url: str, mutex: str, tmp_path: object) -> None:
    script = SCRIPT.format(url=url.format(tmp=tmp_path), mutex=mutex)
    outcome = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE)
    assert outcome.stdout == "child worked", outcome.stderr


def test_nothing_is_said_when_the_interpreter_ends() -> None:
    """Also of what goes last of all, when half of the library is gone."""
    script = "import builtins, holdfast.engines.memory as memory; builtins.last = memory._spaces"
    outcome = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE)
    assert outcome.stderr == ""
