"""``holdfast serve``: prepares the database, listens, says where, and runs the workers until it is told to stop."""

from __future__ import annotations

import logging
import socket
import threading
import time
from typing import Final

from .. import schema
from ..errors import LockError
from ..hooks.folders import spool_dir
from ..hooks.shim import Server as HookServer
from ..hooks.spool import Spool
from ..hooks.token_file import token_in
from . import logs, place, tokens, workers
from .settings import Settings

_log = logging.getLogger("holdfast.server")

_SPOOL_SECONDS: Final = 2.0


def serve(settings: Settings) -> int:
    logs.configure()
    with place.database(settings) as url, _listen(settings) as listener:
        schema.upgrade(url)
        place.check(settings, url)
        code = _prepare_tokens(settings, url)
        _announce(settings, listener, code)
        threading.Thread(target=_fetch_spooled, args=(settings, address(listener)), daemon=True).start()
        if not workers.run(settings.workers, listener):
            raise LockError("the server could not be started; its log says why")
    return 0


def _prepare_tokens(settings: Settings, url: str) -> str:
    """Makes the first tokens, and the code by which a browser is let in, which is returned."""
    everything = (tokens.HOOK, tokens.READ, tokens.ADMIN)
    for name, scopes in (("token", everything), ("hook-token", (tokens.HOOK,))):
        path = settings.data_dir / name
        if not tokens.register(url, token_in(path), settings.tenant, scopes, f"{name} of the data folder"):
            raise LockError(f"the token in {path} was revoked: delete the file to have a new one made")
    return tokens.new_page_code(url, settings.tenant)


def _listen(settings: Settings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        listener = socket.socket(family)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((settings.host, settings.port))
        # Of every connection. One that is closed with something left to send would stay for as long as its peer lives
        # and takes nothing; this ends it, after we have given the peer up ourselves.
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux
            milliseconds = int(2 * settings.stream_patience * 1000)
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
        listener.listen(1024)
    except OSError as error:
        raise LockError(f"cannot listen on {settings.host}:{settings.port}: {error.strerror or error}") from error
    listener.set_inheritable(True)
    return listener


def address(listener: socket.socket) -> str:
    return address_of(*listener.getsockname()[:2])


def address_of(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _announce(settings: Settings, listener: socket.socket, code: str) -> None:
    at = address(listener)
    default = at == "http://127.0.0.1:8765"
    print(f"Holdfast listens on {at}")
    print(f"  page:   {at}/?code={code}   (lets one browser in, within the hour)")
    print(f"  hooks:  holdfast hooks install{'' if default else f' --url {at}'}")
    print(f"  token:  {settings.data_dir / 'token'}", flush=True)


def _fetch_spooled(settings: Settings, at: str) -> None:
    """Delivers what shims on this machine could not, while there was no server."""
    by_name = at.replace("127.0.0.1", "localhost")
    spools = [Spool(spool_dir(settings.data_dir, url)) for url in {at, by_name}]
    server = HookServer(at, settings.data_dir, workers.GRACE)
    while True:
        for spool in spools:
            try:
                spool.deliver(server.send_late)
            except (OSError, ValueError) as error:  # ValueError: of HOLDFAST_TOKEN, if that can be no token
                _log.warning("a spool cannot be read: %s", error, extra={"action": "spool_unread"})
        time.sleep(_SPOOL_SECONDS)
