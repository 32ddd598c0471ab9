"""The keeper: a small detached process beside one server, which starts it and stops it after its last user.

It waits for two things at once: the end of the server (then it ends too, and the next start begins afresh) and the
exclusive lock on ``users.lock``, which the kernel grants when the last user has left or died. Killed itself, it takes
the server along, because the server is bound to its parent's life.
"""

import fcntl
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path
from types import FrameType

from . import _privileges, postgres, redis
from ._error import EmbeddedError
from ._home import read_socket, write_socket
from ._prctl import die_with_parent
from ._recipe import Order, Recipe, Workbench

_RECIPES: dict[str, Recipe] = {recipe.name: recipe for recipe in (postgres.RECIPE, redis.RECIPE)}
_LONGEST_SOCKET = 107  # bytes in sockaddr_un.sun_path, less the closing zero
_PROBE_PATIENCE = 2.0
_STOP_PATIENCE = 30.0  # seconds for an orderly stop before a hard one; both servers recover from the latter


def main() -> None:
    order = Order.from_json(sys.stdin.buffer.read())
    if os.fork():  # the starter waits for this process only, and never gets a zombie
        os._exit(0)
    _forget_starter()
    report = Report(order.report)
    try:
        _keep(order, report)
    except (EmbeddedError, OSError) as error:
        traceback.print_exc()
        report.failed(str(error))
        sys.exit(1)


class Report:
    """The starter's view of the start: one line at a time, until it is ready or has failed."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def say(self, text: str) -> None:
        self._send(f"info {text}")

    def ready(self) -> None:
        self._send("ready")
        self._close()

    def failed(self, why: str) -> None:
        self._send(f"failed {why}")
        self._close()

    def _send(self, line: str) -> None:
        if self._fd >= 0:
            try:
                os.write(self._fd, line.replace("\n", " ").encode(errors="replace") + b"\n")
            except BrokenPipeError:  # the starter gave up or was killed; whether to go on is for users.lock to say
                self._close()

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
        self._fd = -1


def _forget_starter() -> None:
    """Undo what a starter may hand down: ignored or blocked signals, its terminal, its umask."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.umask(0o077)


def _keep(order: Order, report: Report) -> None:
    recipe = _RECIPES[order.recipe]
    _privileges.become(order.uid, order.gid, [order.home, order.program])
    home = Path(order.home)
    socket = _choose_socket(home, recipe.socket_name(order.options))
    try:
        bench = Workbench(order, home, socket, report.say, lambda argv: _run_to_end(argv, order.server_lock))
        command = recipe.command(bench)
        write_socket(home, socket)
        # Before the thread below: a fork in a process with threads may hang, and the kernel ties the server's life to
        # the thread that forked it, which must be this one, the last to go.
        server = _start_bound(command, recipe.stop_signals[0], order.server_lock)
        _stop_on_signal(server, recipe)
        threading.Thread(target=_stop_after_last_user, args=(order.users_lock, server, recipe), daemon=True).start()
        _report_when_ready(server, recipe, socket, report)
        server.wait()
    finally:
        _clear_socket(home, socket)


def _start_bound(argv: list[str], death_signal: int, server_lock: int) -> "subprocess.Popen[bytes]":
    """A child that holds `server_lock` and ends when this process ends."""
    keeper = os.getpid()
    return subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        pass_fds=(server_lock,),
        preexec_fn=lambda: die_with_parent(death_signal, keeper),
    )


def _run_to_end(argv: list[str], server_lock: int) -> "subprocess.CompletedProcess[bytes]":
    child = _start_bound(argv, signal.SIGKILL, server_lock)
    return subprocess.CompletedProcess(argv, child.wait())


def _report_when_ready(server: "subprocess.Popen[bytes]", recipe: Recipe, socket: str, report: Report) -> None:
    # No deadline: recovery after a crash may take long, and if all who wait give up, users.lock stops the server.
    while server.poll() is None:
        if recipe.answers(socket, _PROBE_PATIENCE):
            report.ready()
            return
        time.sleep(0.01)
    report.failed(f"the server ended with code {server.returncode}")


def _stop_after_last_user(users_lock: int, server: "subprocess.Popen[bytes]", recipe: Recipe) -> None:
    fcntl.flock(users_lock, fcntl.LOCK_EX)  # blocks for as long as anybody uses the server
    for number in recipe.stop_signals:
        server.send_signal(number)
        time.sleep(_STOP_PATIENCE)  # a daemon thread: the process ends without it as soon as the server has ended


def _stop_on_signal(server: "subprocess.Popen[bytes]", recipe: Recipe) -> None:
    """Somebody ends the keeper in an orderly way (a system going down): stop the server, then end as usual."""

    def stop(_number: int, _frame: FrameType | None) -> None:
        server.send_signal(recipe.stop_signals[0])

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, stop)


def _choose_socket(home: Path, name: str) -> str:
    """In the home if the path fits into a socket address, else in a private folder with a short path."""
    inside = str(home / name)
    if _fits(inside):
        return inside
    # The same folder as before: after a killed keeper there may be users left who know the old address.
    before = os.path.dirname(read_socket(home))
    if before and before != str(home) and _make_private(before) and _fits(f"{before}/{name}"):
        return f"{before}/{name}"
    for where in (tempfile.gettempdir(), "/tmp"):
        if _fits(f"{where}/holdfast-12345678/{name}"):
            return f"{tempfile.mkdtemp(prefix='holdfast-', dir=where)}/{name}"
    raise EmbeddedError(f"no folder with a path short enough for a socket: {inside}")


def _fits(path: str) -> bool:
    return len(os.fsencode(path)) <= _LONGEST_SOCKET and "," not in path  # libpq splits host names at commas


def _make_private(folder: str) -> bool:
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        status = os.lstat(folder)  # ours, or put there by somebody else in the meantime?
        return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o077
    except OSError:
        return False
    return True


def _clear_socket(home: Path, socket: str) -> None:
    folder = os.path.dirname(socket)
    if folder != str(home):
        shutil.rmtree(folder, ignore_errors=True)
