"""The file engine: one queue per lock in this process, one flock per lock on this machine."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Hashable
from functools import cached_property, partial
from threading import Lock
from typing import Final

from ... import fork
from ...errors import BackendUnavailable, InvalidOption
from ...flow import Call, Flow, at_once
from ...keys import Key
from ...ticket import Ticket
from ..base import Capabilities, Engine, Holder, told
from . import blockers
from .grip import Grip, read_record, take
from .holders import Here, holder_of, scan
from .names import LOCK, file_name, folder_id, names
from .sweep import sweep

HANDOVERS: Final = 4
"""How often in a row a lock may be passed on inside the process, so that other processes get their turn."""


class Line:
    """One lock in this process: who has it, who waits. It exists while anyone, or a blocked thread, is at it."""

    __slots__ = ("handovers", "holder", "name", "waiting")

    def __init__(self, name: str) -> None:
        self.name = name
        self.holder: Ticket | None = None
        self.waiting: OrderedDict[Ticket, None] = OrderedDict()
        self.handovers = 0


class Folder:
    """The lines of one folder, shared by all clients of this process."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.mutex = Lock()
        self.lines: dict[Hashable, Line] = {}
        self.id = b""
        self.make()
        fork.in_child(self._start_afresh)

    def make(self) -> None:
        """Makes the folder, also when somebody removed it under our feet."""
        os.makedirs(self.path, exist_ok=True)
        self.id = folder_id(self.path)

    def take(self, line: Line, *, block: bool) -> Grip | None:
        try:
            return take(names(self.path, self.id, line.name), block=block)
        except FileNotFoundError:
            self.make()
            return take(names(self.path, self.id, line.name), block=block)

    def join(self, ticket: Ticket, name: str) -> Line | None:
        """The ticket's new line if it is the first in it. Else it waits its turn in the line, if it waits at all."""
        with self.mutex:
            line = self.lines.get(name)
            if line is None:
                self.lines[name] = line = Line(name)
                return line
            if ticket.waits:
                ticket.arm()
                line.waiting[ticket] = None
            return None

    def leave(self, ticket: Ticket) -> bool:
        """Ends the ticket's wait. True if it has been granted the lock meanwhile."""
        with self.mutex:
            if ticket.held:
                return True
            line = self.lines.get(ticket.wire)
            if line is not None:
                line.waiting.pop(ticket, None)
            return False

    def first_taken(self, ticket: Ticket, line: Line, grip: Grip | None) -> bool:
        """What becomes of the try that the first of a line makes in its own thread."""
        with self.mutex:
            if grip is not None:
                ticket.granted(engine_state=grip)
                line.holder = ticket
                return True
            if ticket.waits:
                ticket.arm()
                line.waiting[ticket] = None
                line.waiting.move_to_end(ticket, last=False)
        self.take_for_next(line)
        return False

    def take_for_next(self, line: Line) -> None:
        """Nobody here has the lock: has it taken for the first in line, or ends the line."""
        with self.mutex:
            if not line.waiting:
                del self.lines[line.name]
                return
        blockers.call(partial(self._block_for_next, line))

    def pass_on(self, ticket: Ticket) -> None:
        """Ends the ticket's hold, if it has one."""
        with self.mutex:
            line = self.lines.get(ticket.wire)
            if line is None or line.holder is not ticket:
                return
            grip: Grip = ticket.engine_state
            if line.handovers < HANDOVERS and self._hand_to_next(line, grip):
                line.handovers += 1
                return
            line.holder = None
        try:
            grip.release()
        finally:
            self.take_for_next(line)

    def _block_for_next(self, line: Line) -> None:
        # Runs in a thread that may block. Those it was called for may have left by the time the lock is got.
        try:
            grip = self.take(line, block=True)
        except OSError as error:
            self._fail(line, error)
            return
        assert grip is not None
        with self.mutex:
            line.handovers = 0
            if self._hand_to_next(line, grip):
                return
        grip.release()
        self.take_for_next(line)

    def _hand_to_next(self, line: Line, grip: Grip) -> bool:
        while line.waiting:
            heir, _ = line.waiting.popitem(last=False)
            assert heir.wakeup is not None
            if heir.wakeup.wake():  # it cannot look at its state before the mutex is free again
                heir.granted(engine_state=grip)
                line.holder = heir
                return True
        return False

    def _fail(self, line: Line, error: OSError) -> None:
        with self.mutex:
            while line.waiting:
                ticket, _ = line.waiting.popitem()
                ticket.engine_state = error
                assert ticket.wakeup is not None
                ticket.wakeup.wake()
        self.take_for_next(line)

    def _start_afresh(self) -> None:
        self.mutex = Lock()
        self.lines = {}


_folders: dict[str, Folder] = {}
_folders_mutex = Lock()


def _new_mutex() -> None:
    global _folders_mutex
    _folders_mutex = Lock()


fork.in_child(_new_mutex)


def open_folder(path: str) -> Folder:
    """The one object that stands for this folder in this process."""
    real = os.path.realpath(path)
    with _folders_mutex:
        folder = _folders.get(real)
        if folder is None:
            folder = _folders[real] = Folder(real)
            sweep(folder.path, folder.id)
        return folder


class FileEngine(Engine):
    """Fenced; fair between processes as far as the kernel is, in order of arrival inside one."""

    scheme = "file"
    capabilities = Capabilities(fenced=True, scope="machine")

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        try:
            self._folder = open_folder(os.fspath(folder))
        except OSError as error:
            raise BackendUnavailable(
                f"folder {os.fspath(folder)!r} cannot be used for locks: {error.strerror}"
            ) from error

    @classmethod
    def from_url(cls, place: str, options: dict[str, object]) -> FileEngine:
        from urllib.parse import unquote

        if options:
            raise InvalidOption(f"{', '.join(sorted(options))}: the file engine takes no such option")
        if not place.startswith("/") or "?" in place or "#" in place:
            raise InvalidOption(f"url: 'file://{place}' is no folder; write file:/// and an absolute path")
        return cls(unquote(place))

    @cached_property
    def server(self) -> Hashable:
        return ("file", self._folder.path)

    def wire(self, key: Key) -> Hashable:
        return file_name(key)

    def acquire(self, ticket: Ticket) -> Flow[bool]:
        folder = self._folder
        line = folder.join(ticket, str(ticket.wire))
        if line is not None and self._try_first(ticket, line):
            self._stamp(ticket)
            return True
        if ticket.wakeup is None:
            return False
        try:
            yield ticket.wakeup.sleep(ticket.deadline)
        finally:
            granted = folder.leave(ticket)
        if granted:
            self._stamp(ticket)
        elif isinstance(ticket.engine_state, OSError):
            raise self._unavailable(ticket.key, ticket.engine_state)
        return granted

    def release(self, ticket: Ticket) -> Flow[None]:
        try:
            self._folder.pass_on(ticket)
        except OSError as error:
            raise self._unavailable(ticket.key, error) from error
        return at_once(None)

    def holders(self) -> Flow[list[Holder]]:
        with self._folder.mutex:
            lines = self._folder.lines.values()
            here = {line.name: Here(line.holder is not None, len(line.waiting)) for line in lines}
        found: list[Holder] = yield Call(scan, self._folder.path, here)
        return found

    def evict(self, key: Key, *, force: bool) -> Flow[bool]:
        with self._folder.mutex:
            line = self._folder.lines.get(self.wire(key))
            ticket = line.holder if line is not None else None
        if ticket is not None:
            if not ticket.lose("it was evicted"):
                return False  # released in this very moment
            self._folder.pass_on(ticket)
            return True
        holder: Holder | None = yield Call(holder_of, os.path.join(self._folder.path, f"{self.wire(key)}{LOCK}"))
        if holder is None:
            return False
        raise self.unsupported("evict()", f"process {holder.pid} holds it and cannot be reached; end that process", key)

    def who_holds(self, ticket: Ticket) -> str:
        line = self._folder.lines.get(ticket.wire)
        if line is not None and line.holder is not None:
            return f"; held by {told(line.holder)}"
        record = read_record(os.path.join(self._folder.path, f"{ticket.wire}{LOCK}"))
        if not record:
            return ""
        note = f" ({record['note']})" if record.get("note") else ""
        return f"; held by {record.get('owner')} of process {record.get('pid')}{note}"

    def _try_first(self, ticket: Ticket, line: Line) -> bool:
        grip = None
        try:
            grip = self._folder.take(line, block=False)
            return self._folder.first_taken(ticket, line, grip)
        except BaseException as error:
            if not ticket.held:
                if grip is not None:
                    grip.release()
                self._folder.take_for_next(line)
            if isinstance(error, OSError):
                raise self._unavailable(ticket.key, error) from error
            raise

    def _stamp(self, ticket: Ticket) -> None:
        try:
            ticket.engine_state.stamp(ticket)
        except OSError as error:
            raise self._unavailable(ticket.key, error) from error

    def _unavailable(self, key: Key, error: OSError) -> BackendUnavailable:
        return BackendUnavailable(
            f"{key}: its lock file in {self._folder.path} cannot be used: {error.strerror}", key=key
        )

    def __repr__(self) -> str:
        return f"file://{self._folder.path}"
