"""The file engine: one queue per lock in this process, one flock per lock on this machine."""

from __future__ import annotations

import errno
import os
from collections import OrderedDict
from collections.abc import Hashable
from functools import cached_property, partial
from typing import Final

from ... import fork
from ...errors import BackendUnavailable, InvalidOption
from ...flow import Call, Flow, at_once
from ...keys import Key
from ...ticket import State, Ticket
from ..base import Capabilities, Engine, Eviction, Holder, told
from ..late import Late, refuse_amid
from ..shared import Shared
from . import blockers
from .grip import Grip, read_record, take
from .holders import Here, holder_of, scan
from .names import LOCK, file_name, folder_id, names
from .sweep import sweep

HANDOVERS: Final = 4
"""How often in a row a lock may be passed on inside the process, so that other processes get their turn."""


class Line:
    """One lock in this process: who has it, who waits. It exists while anyone, or a blocked thread, is at it."""

    __slots__ = ("handovers", "holder", "name", "taker", "waiting")

    def __init__(self, name: str, taker: Ticket) -> None:
        self.name = name
        self.holder: Ticket | None = None
        self.taker: object = taker
        """Who is in charge while nobody holds it: the ticket that came first or just left, or a blocker's errand."""
        self.waiting: OrderedDict[Ticket, None] = OrderedDict()
        self.handovers = 0


class Folder(Late):
    """The lines of one folder, shared by all clients of this process."""

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path
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
        refuse_amid(self.mutex, ticket)
        with self.mutex:
            line = self.lines.get(name)
            if line is None:
                self.lines[name] = line = Line(name, ticket)
                return line
            if ticket.waits:
                ticket.arm()
                line.waiting[ticket] = None
            return None

    def leave(self, ticket: Ticket) -> bool:
        """Ends the ticket's wait, if it has one. True if it has been granted the lock."""
        if self.put_off(self.leave_late, ticket):
            return ticket.state is not State.WAITING
        with self.mutex:
            granted = ticket.state is not State.WAITING  # also if it was evicted already: a loss, not a busy lock
            line = self.lines.get(ticket.wire)
            if line is not None:
                line.waiting.pop(ticket, None)
        if line is not None and line.taker is ticket and not granted:
            self.take_for_next(line, ticket)
        self.catch_up()
        return granted

    def first_taken(self, ticket: Ticket, line: Line, grip: Grip | None) -> bool:
        """What becomes of the try that the first of a line makes in its own thread."""
        with self.mutex:
            if grip is not None:
                ticket.granted(engine_state=grip)
                line.holder, line.taker = ticket, None
                return True
            if ticket.waits:
                ticket.arm()
                line.waiting[ticket] = None
                line.waiting.move_to_end(ticket, last=False)
        self.take_for_next(line, ticket)
        return False

    def take_for_next(self, line: Line, in_charge: object) -> None:
        """Nobody here has the lock: has it taken for the first in line, or ends the line."""
        with self.mutex:
            if line.taker is not in_charge:
                return  # a release that was called twice, at once
            if not line.waiting:
                line.taker = None
                del self.lines[line.name]
                return
            line.taker = errand = object()
        try:
            blockers.call(partial(self._block_for_next, line, errand))
        except BaseException as error:
            with self.mutex:
                if line.taker is not errand:
                    raise  # Ctrl-C, but the thread is at work
                line.taker = retry = object()  # and if it starts after all, it finds that it is not wanted
            if not isinstance(error, RuntimeError):
                self.take_for_next(line, retry)
                raise
            self._fail(line, OSError(errno.EAGAIN, "no thread can be started to wait for it"), retry)

    def pass_on(self, ticket: Ticket) -> None:
        """Ends the ticket's hold, if it has one."""
        if self.put_off(self.pass_on, ticket):
            return
        try:
            self._pass_on(ticket)
        finally:
            self.catch_up()

    def _pass_on(self, ticket: Ticket) -> None:
        with self.mutex:
            line = self.lines.get(ticket.wire)
            if line is None or (line.holder is not ticket and line.taker is not ticket):
                return
            grip: Grip = ticket.engine_state
            handover = line.holder is ticket and line.handovers < HANDOVERS
            if handover and self._hand_to_next(line, grip):
                line.handovers += 1
                return
            # Still in charge: should Ctrl-C strike below, the release is called again.
            line.holder, line.taker = None, ticket
        try:
            grip.release()
        except OSError:
            self.take_for_next(line, ticket)
            raise
        self.take_for_next(line, ticket)

    def _block_for_next(self, line: Line, errand: object) -> None:
        # Runs in a thread that may block. Those it was called for may have left by the time the lock is got.
        with self.mutex:
            if line.taker is not errand:
                return
            line.taker = _AT_WORK
        try:
            grip = self.take(line, block=True)
        except OSError as error:
            self._fail(line, error, _AT_WORK)
        else:
            assert grip is not None
            with self.mutex:
                line.handovers = 0
                handed = self._hand_to_next(line, grip)
            if not handed:
                grip.release()
                self.take_for_next(line, _AT_WORK)
        self.catch_up()

    def _hand_to_next(self, line: Line, grip: Grip) -> bool:
        while line.waiting:
            heir = next(iter(line.waiting))
            try:
                handed = self._hand_to(heir, line, grip)
            except BaseException:  # Ctrl-C: the heir has its place to lose, and a second time does no harm
                self._hand_to(heir, line, grip)
                raise
            if handed:
                return True
        return False

    def _hand_to(self, heir: Ticket, line: Line, grip: Grip) -> bool:
        # It cannot look at its state before the mutex is free again. Without a wakeup it was woken before.
        woken = heir.wakeup is None or heir.wakeup.wake()
        line.waiting.pop(heir, None)
        if woken:
            heir.granted(engine_state=grip)
            line.holder, line.taker = heir, None
            heir.wakeup = None  # it leads to the task: one whose loop is closed now could never be collected
        return woken

    def _fail(self, line: Line, error: OSError, in_charge: object) -> None:
        with self.mutex:
            while line.waiting:
                ticket, _ = line.waiting.popitem()
                ticket.engine_state = error
                assert ticket.wakeup is not None
                ticket.wakeup.wake()
        self.take_for_next(line, in_charge)

    def _start_afresh(self) -> None:
        self.start_afresh()
        self.lines = {}


_AT_WORK: Final = object()
_folders: Shared[Folder] = Shared()


def open_folder(path: str) -> Folder:
    """The one object that stands for this folder in this process."""
    real = os.path.realpath(path)

    def opened() -> Folder:
        folder = Folder(real)
        sweep(folder.path, folder.id)
        return folder

    return _folders.take(real, opened)


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
        try:
            line = folder.join(ticket, str(ticket.wire))
            if (line is None or not self._try_first(ticket, line)) and (wakeup := ticket.wakeup):
                yield wakeup.sleep(ticket.deadline)
        finally:
            # Around all of it: Ctrl-C at any line must leave neither the ticket in line nor a line without anyone.
            try:
                granted = folder.leave(ticket)
            except KeyboardInterrupt:  # struck in there
                folder.leave(ticket)
                raise
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
        self._folder.catch_up()
        try:
            found: list[Holder] = yield Call(scan, self._folder.path, here)
        except FileNotFoundError:
            return []  # somebody removed the folder; the next lock makes it anew
        except OSError as error:
            raise BackendUnavailable(f"the locks in {self._folder.path} cannot be listed: {error.strerror}") from error
        return found

    def evict(self, key: Key, *, force: bool) -> Flow[bool | Eviction]:
        with self._folder.mutex:
            line = self._folder.lines.get(self.wire(key))
            ticket = line.holder if line is not None else None
        self._folder.catch_up()
        if ticket is not None:
            if not ticket.lose("it was evicted"):
                return False  # released in this very moment
            yield from self.release(ticket)
            return True
        holder: Holder | None = yield Call(holder_of, os.path.join(self._folder.path, f"{self.wire(key)}{LOCK}"))
        if holder is None or holder.here:
            return False  # ours, but nobody's: it is being taken or let go in this very moment
        process = "another process" if holder.pid is None else f"process {holder.pid}"  # its note may be half written
        raise self.unsupported("evict()", f"{process} holds it and cannot be reached; end that process", key)

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
            if grip is not None and not ticket.held:
                grip.release()
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
