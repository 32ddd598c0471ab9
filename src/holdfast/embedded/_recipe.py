"""What has to be known about a kind of server to start, recognise and stop it."""

import json
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from signal import Signals
from typing import Protocol


@dataclass(frozen=True)
class Order:
    """What a starter asks its keeper to do; the numbers are open files the keeper inherits."""

    recipe: str
    home: str
    program: str
    options: dict[str, str]
    uid: int
    gid: int
    users_lock: int
    keeper_lock: int
    server_lock: int
    report: int

    def to_json(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @staticmethod
    def from_json(text: bytes) -> "Order":
        return Order(**json.loads(text))


@dataclass(frozen=True)
class Workbench:
    """What the keeper lends a recipe for preparing a start."""

    order: Order
    home: Path
    socket: str
    say: Callable[[str], None]  # progress, for the log of whoever waits
    run: Callable[[list[str]], "subprocess.CompletedProcess[bytes]"]  # to its end; dies with the keeper


class Recipe(Protocol):
    """One kind of server."""

    @property
    def name(self) -> str:
        """Its folder in the data folder, and its name in messages."""

    @property
    def accounts(self) -> tuple[str, ...]:
        """Whom root runs it as: the first that exists."""

    @property
    def stop_signals(self) -> tuple[Signals, Signals]:
        """The orderly one, and the one for when that takes too long."""

    def program(self, home: Path) -> Path:
        """The file or folder with its programs."""

    def socket_name(self, options: Mapping[str, str]) -> str:
        """The file name of its socket; refuses options that would move the socket away."""

    def command(self, bench: Workbench) -> list[str]:
        """Make everything ready, clear what a killed server left, and return the command line."""

    def answers(self, socket: str, patience: float) -> bool:
        """Whether a server that takes work answers there, within `patience` seconds."""

    def url(self, socket: str) -> str:
        """How a client is told to connect."""
