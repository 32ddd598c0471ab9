"""From root to the account a server runs as, without opening any folder to anybody.

PostgreSQL refuses to run as root, so root's keeper and server run as an unprivileged account. That account often
cannot reach what it needs: the wheel below ``/root`` (0700), the data in a private temporary folder of root. Widening
the modes of those folders would expose them to everybody, for good. Instead this one process tree gets one capability
that lets it pass through folders, and loses it when it ends:

* CAP_DAC_READ_SEARCH: read and pass through any folder. Enough, because what is written belongs to the account.
* CAP_DAC_OVERRIDE, where only that one may be had, as in a default Docker container.

Given only when the account really cannot reach something, which is tried, not computed: access lists, mounts and
security modules have a say as well.
"""

import ctypes
import os
from collections.abc import Sequence

from ._error import EmbeddedError
from ._prctl import AMBIENT_CAPABILITY, AMBIENT_RAISE, KEEP_CAPABILITIES, libc, prctl

_DAC_OVERRIDE = 1
_DAC_READ_SEARCH = 2
_CAPABILITY_VERSION_3 = 0x20080522


def become(uid: int, gid: int, must_reach: Sequence[str]) -> None:
    """Turn this process from root into `uid` for good, still able to reach every path of `must_reach`.

    The process must have one thread only: credentials belong to threads.
    """
    if os.geteuid() != 0:
        return
    try:
        unreachable = _unreachable_as(uid, gid, must_reach)
        if unreachable:
            _become_with_capability(uid, gid, _passing_capability(unreachable))
        else:
            _become_plain(uid, gid)
    except OSError as error:
        raise EmbeddedError(f"root could not become uid {uid} to run the server: {error}") from error


def _become_plain(uid: int, gid: int) -> None:
    os.setgroups([])
    os.setgid(gid)
    os.setuid(uid)


def _become_with_capability(uid: int, gid: int, capability: int) -> None:
    prctl(KEEP_CAPABILITIES, 1)  # else setuid() away from 0 empties the permitted set
    _become_plain(uid, gid)
    _set_only_capability(capability)
    # Only an ambient capability survives the exec of an ordinary program by an ordinary account.
    prctl(AMBIENT_CAPABILITY, AMBIENT_RAISE, capability)


def _unreachable_as(uid: int, gid: int, paths: Sequence[str]) -> str:
    """The first path that plain `uid` cannot read and pass, or ''. A child that has become `uid` tries it."""
    child = os.fork()
    if child == 0:
        try:
            _become_plain(uid, gid)
            blocked = [i for i, path in enumerate(paths) if not os.access(path, os.R_OK | os.X_OK)]
            os._exit(blocked[0] + 1 if blocked else 0)
        finally:
            os._exit(255)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code == 0:
        return ""
    if 1 <= code <= len(paths):
        return paths[code - 1]
    raise PermissionError(f"a trial child could not become uid {uid}")


def _passing_capability(unreachable: str) -> int:
    available = _status_set("CapPrm") & _status_set("CapBnd")  # both are needed to make a capability ambient
    for capability in (_DAC_READ_SEARCH, _DAC_OVERRIDE):
        if available >> capability & 1:
            return capability
    raise EmbeddedError(
        f"the server's account cannot reach {unreachable}, and this root has neither CAP_DAC_READ_SEARCH nor "
        "CAP_DAC_OVERRIDE to let it; use a folder that every account can pass through"
    )


def _status_set(field: str) -> int:
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith(f"{field}:"):
                return int(line.split()[1], 16)
    return 0


def _set_only_capability(capability: int) -> None:
    # struct __user_cap_header_struct {version, pid}; two __user_cap_data_struct {effective, permitted, inheritable},
    # one for capabilities 0..31 and one for those above, which are all dropped.
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    bit = 1 << capability
    data = (ctypes.c_uint32 * 6)(bit, bit, bit, 0, 0, 0)
    if libc.capset(header, data) != 0:
        raise OSError(ctypes.get_errno(), f"capset: {os.strerror(ctypes.get_errno())}")
