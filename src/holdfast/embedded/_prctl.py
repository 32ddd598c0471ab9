"""Linux' prctl(), which Python does not offer."""

import ctypes
import os
import sys

SET_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG
KEEP_CAPABILITIES = 8  # PR_SET_KEEPCAPS
AMBIENT_CAPABILITY = 47  # PR_CAP_AMBIENT
AMBIENT_RAISE = 2  # PR_CAP_AMBIENT_RAISE

libc = ctypes.CDLL(None, use_errno=True)


def prctl(option: int, first: int, second: int = 0) -> None:
    # prctl is variadic and the kernel insists that unused arguments are zero: give all five, as longs.
    arguments = [ctypes.c_ulong(value) for value in (first, second, 0, 0)]
    if libc.prctl(option, *arguments) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}, {first}): {os.strerror(ctypes.get_errno())}")


def die_with_parent(signal_number: int, parent: int) -> None:
    """In a child between fork and exec: get `signal_number` when the parent ends, even by kill -9.

    Must come after every change of credentials (those clear it), and the parent must have forked from a thread that
    lives as long as the child should (the kernel means the thread, not the process).
    """
    if sys.platform != "linux":  # elsewhere an orphaned server stays; the next start waits for it and says so
        return
    prctl(SET_DEATH_SIGNAL, signal_number)
    if os.getppid() != parent:  # the parent died before the line above could count
        os._exit(1)
