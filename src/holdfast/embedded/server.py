"""One process's use of an embedded server: joining the one that runs, or starting it; and leaving."""

import logging
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from ._error import EmbeddedError
from ._home import Home, open_home
from ._recipe import Order, Recipe
from ._share import LockFile, Patience

_log = logging.getLogger("holdfast.embedded")

_STOP_PATIENCE = 60.0  # how long close() waits for a server it was the last to use
_PROBE_PATIENCE = 2.0
_HANDOVER = 1.0  # within this time a keeper without users has noticed, unless the machine stands still

# The keeper runs isolated (-I -S): no PYTHONPATH, no site packages, no current folder; only Python itself and the
# folder this very package came from, last on the path so that nothing in it can shadow Python's own modules.
_KEEPER = "import sys; sys.path.append(sys.argv[1]); from holdfast.embedded.keeper import main; main()"


class Server:
    """A running server, in use by this process until close() or the end of the process, however it ends.

    A child made with os.fork() is not a user: it has to start (that is: join) the server itself.
    """

    def __init__(self, url: str, data_dir: Path, home: Home, users: LockFile) -> None:
        self.url = url
        self.data_dir = data_dir
        self._home = home
        self._users = users

    def close(self) -> None:
        """Stop using the server. The last user's close() returns once it has stopped: its folder may be deleted."""
        if self._users.closed:
            return
        with self._users as users:
            # Exclusive at once: nobody else uses it. Shared refused: the keeper already has it and is stopping.
            # (The change to exclusive gives up our share first, so a waiting keeper may come in between.)
            last = users.try_exclusive() or not users.try_shared()
        if last:
            _wait_until_stopped(self._home)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<embedded server {self.url}{' (closed)' if self._users.closed else ''}>"


def start(recipe: Recipe, data_dir: str | os.PathLike[str], options: Mapping[str, str], wait: float) -> Server:
    """Join the server in `data_dir`, or start it, within `wait` seconds."""
    recipe.socket_name(options)  # refuse impossible options before anything is made
    patience = Patience(wait)
    home = open_home(data_dir, recipe.name, recipe.accounts)
    users = home.lock("users")
    try:
        with home.lock("start") as starting:
            patience.wait_for(starting.try_exclusive, f"another process is still starting {recipe.name} in {home.path}")
            # Our share comes before the look at the keeper: from here on a running keeper will not stop.
            patience.wait_for(users.try_shared, f"the last {recipe.name} in {home.path} is still stopping")
            with home.lock("keeper") as keeper, home.lock("server") as server:
                if not _running(recipe, home, keeper, patience):
                    # Processes of a killed server may still be on their way out: two at once would ruin the data.
                    patience.wait_for(server.try_exclusive, f"a killed {recipe.name} in {home.path} is still ending")
                    _launch(recipe, home, options, keeper, server, patience)
        return Server(recipe.url(home.socket()), home.path.parent, home, users)
    except BaseException:
        users.close()
        raise


def _running(recipe: Recipe, home: Home, keeper: LockFile, patience: Patience) -> bool:
    """Whether a kept server answers. If not, `keeper` is ours and no keeper lives."""
    while not keeper.try_exclusive():
        if recipe.answers(home.socket(), min(patience.left(), _PROBE_PATIENCE)):
            return True
        # Its server was killed and the keeper is about to notice, or it hangs.
        patience.pause(f"the {recipe.name} in {home.path} runs but does not answer", home.log_tail)
    return False


def _launch(
    recipe: Recipe, home: Home, options: Mapping[str, str], keeper: LockFile, server: LockFile, patience: Patience
) -> None:
    began = time.monotonic()
    _log.info("starting %s in %s", recipe.name, home.path)
    listen, report = os.pipe()
    log = home.new_log()
    try:
        with home.lock("users") as users:  # a second open of the file: the keeper's lock, not our share
            order = Order(
                recipe=recipe.name,
                home=str(home.path),
                program=str(recipe.program(home.path)),
                options=dict(options),
                uid=home.uid,
                gid=home.gid,
                users_lock=users.fileno(),
                keeper_lock=keeper.fileno(),
                server_lock=server.fileno(),
                report=report,
            )
            _spawn_keeper(order, log)
        os.close(report)
        report = -1
        _await_ready(recipe, home, listen, patience)
    finally:
        for fd in (listen, report, log):
            if fd >= 0:
                os.close(fd)
    _log.info("%s is ready in %.1f s", recipe.name, time.monotonic() - began)


def _spawn_keeper(order: Order, log: int) -> None:
    """Start the detached keeper; the process waited for here only forks it."""
    package_folder = str(Path(__file__).parents[2])
    same_file_names = f"utf8={sys.flags.utf8_mode}"  # else a name beyond ASCII may be another file to the keeper
    subprocess.run(
        [sys.executable, "-I", "-S", "-X", same_file_names, "-c", _KEEPER, package_folder, f"keeper of {order.home}"],
        input=order.to_json(),  # not on the command line: options may hold a password
        stdout=log,
        stderr=log,
        cwd="/",
        # PGPORT, PGDATA and friends of the starter would otherwise change the server.
        env={name: value for name, value in os.environ.items() if not name.startswith("PG")},
        start_new_session=True,  # a Ctrl-C at the starter's terminal is not for the server
        pass_fds=(order.users_lock, order.keeper_lock, order.server_lock, order.report),
        check=False,
    )


def _await_ready(recipe: Recipe, home: Home, listen: int, patience: Patience) -> None:
    """Follow the keeper's report: lines `info …`, then `ready` or `failed …`; an early end means it died."""
    poll = select.poll()
    poll.register(listen, select.POLLIN)
    received = b""
    while True:
        if not poll.poll(patience.left() * 1000):
            patience.pause(f"{recipe.name} in {home.path} did not get ready", home.log_tail)
            continue
        chunk = os.read(listen, 65536)
        *lines, received = (received + chunk).split(b"\n")
        for line in lines:
            word, _, text = line.decode().partition(" ")
            if word == "ready":
                return
            if word == "failed":
                raise EmbeddedError(f"{recipe.name} in {home.path} did not start: {text}\n{home.log_tail()}")
            _log.info("%s", text)
        if not chunk:
            raise EmbeddedError(f"the keeper of {recipe.name} in {home.path} ended early\n{home.log_tail()}")


def _wait_until_stopped(home: Home) -> None:
    patience, handover = Patience(_STOP_PATIENCE), Patience(_HANDOVER)
    with home.lock("keeper") as keeper, home.lock("users") as users:
        while patience.left() and not keeper.try_shared():
            # A stopping keeper holds `users` exclusively. If it can be shared, somebody joined right after us.
            # Not asked at once: that would look like a user to a keeper that is just about to take it.
            if not handover.left() and _somebody_joined(users):
                return
            time.sleep(0.005)


def _somebody_joined(users: LockFile) -> bool:
    """Not if nobody has it at all: then the keeper stands still, and takes it when it goes on."""
    if users.try_exclusive():
        users.give_back()
        return False
    return users.try_shared()
