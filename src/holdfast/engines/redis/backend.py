"""How a Redis is asked: one script for each operation, on the connections of a ``Link``."""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache
from math import ceil
from secrets import token_hex
from typing import Any, Final

import hiredis

from ... import fork
from ...deadline import Deadline
from ...errors import BackendUnavailable
from ...flow import Flow, Wakeup
from ...keys import escape
from ..base import Holder
from ..lease import Answer, LeaseBackend, Released, Wish
from ..lease.backend import NoAnswer
from .address import Address
from .link import Opening, link_to, unlink
from .listener import Mailbox
from .packing import ScriptCall, command, load
from .requests import Ended, Request
from .scripts import ALL, DETACH, EVICT, EXTEND, LOOK, RELEASE, ROTATE, TAKE

_take = ScriptCall(TAKE, 4)
_release = ScriptCall(RELEASE, 4)
_extend = ScriptCall(EXTEND, 2)
_detach = ScriptCall(DETACH, 2)
_rotate = ScriptCall(ROTATE, 3)
_evict = ScriptCall(EVICT, 1)
_look = ScriptCall(LOOK, 0)

_TRIES: Final = 3
"""How often a request is made whose connection ends before the answer. The first may be one that was dead before."""
_MOVED_ON: Final = frozenset({"READONLY", "LOADING", "MASTERDOWN"})
"""Errors of a server that is not the master (any more, or yet): the address may lead to another by now."""
_HINTS: Final = {
    "MOVED": "; this node of a cluster does not have the key",
    "WRONGTYPE": "; something else is kept under the lock's name",
    "OOM": "; its memory is full",
}
_GRANT_SUFFIX: Final = "}:grant"


class RedisBackend(LeaseBackend):
    scheme = "redis"

    def __init__(self, address: Address, *, window: float, wait_replicas: int, replicas_within: float) -> None:
        self._link = link_to(address)
        self._window = window
        self._hearing_window = _milliseconds(window)
        self._deaf_window = b"-" + self._hearing_window
        self._replicas = wait_replicas
        self._confirm = b""
        if wait_replicas:
            milliseconds = max(1, round(replicas_within * 1000))
            self._confirm = command(b"WAIT", b"%d" % wait_replicas, b"%d" % milliseconds)
        self._new_mailbox()
        fork.in_child(self._new_mailbox)

    def _new_mailbox(self) -> None:
        """Where this process is reached; another one after a fork."""
        self._mailbox = Mailbox(f"holdfast:{token_hex(8)}", self._heard, self._missed)
        self._here = self._mailbox.name.encode()
        self._entries: dict[str, bytes] = {}
        """By token: what may stand in a queue."""
        self._unanswered: dict[str, Request] = {}
        """By token: questions whose answer may still come, for one who has left."""

    # Connections

    @property
    def server(self) -> Hashable:
        return ("redis", self._link.database)

    @property
    def ready(self) -> bool:
        return self._link.ready and self._mailbox.open.is_set()

    def open(self, deadline: Deadline, new_wakeup: Callable[[], Wakeup]) -> Flow[None]:
        yield Opening(self._link, deadline, self._mailbox)

    def amid(self) -> bool:
        return self._link.amid

    def close(self) -> None:
        self._link.remove(self._mailbox)
        unlink(self._link)

    # Locks

    def take(self, wish: Wish, deadline: Deadline) -> Flow[Answer]:
        if not self.ready:  # nobody is put into a queue who cannot be called
            yield Opening(self._link, deadline, self._mailbox)
        milliseconds = _milliseconds(wish.ttl)
        entry = self._entry(wish, milliseconds)
        if wish.waits:
            self._entries[wish.token] = entry
        payload = _take(wish.name, entry, milliseconds, b"1" if wish.waits else b"0", self._window_now())
        if self._replicas:
            answer = yield from self._take_replicated(wish, payload, deadline)
        else:
            answer = (yield from self._ask(payload, deadline, about=wish.token))[0]
        if answer[0] == 1:
            self._entries.pop(wish.token, None)
            return Answer(fence=int(answer[1]))
        return Answer(again=answer[1] / 1000) if wish.waits else Answer()

    def _take_replicated(self, wish: Wish, payload: bytes, deadline: Deadline) -> Flow[Any]:
        """On one connection: ``WAIT`` is about what was written there before."""
        answer, replicas = yield from self._ask(payload + self._confirm, deadline, 2, about=wish.token)
        if answer[0] == 1 and replicas < self._replicas:
            yield from self.release(wish.name, wish.token, deadline)
            raise BackendUnavailable(
                f"{wish.name}: {replicas} of {self._replicas} replicas confirmed the lock in time; it was given back"
            )
        return answer

    def release(self, name: str, token: str, deadline: Deadline) -> Flow[Released]:
        yield from self._after_the_question(token, deadline)
        entry = self._entries.get(token, b"")
        # An heir whose grant must be confirmed by replicas cannot be told in the reply: it asks.
        here = b"-" if self._replicas else self._here
        payload = _release(name, token.encode(), here, self._window_now(), entry)
        (answer,), again = yield from self._ask_for(payload, deadline, 1, None)
        self._entries.pop(token, None)
        if again:
            # The first answer was lost. It may have said that this was the holder, and who of this process is now.
            self.messages.remade()
            return Released(True)
        if len(answer) < 3:
            return Released(answer[0] == 1)
        if answer[1]:
            return Released(True, answer[1].decode(), int(answer[2]))
        self.messages.look_again(answer[2].decode(), self._window)
        return Released(True)

    def _after_the_question(self, token: str, deadline: Deadline) -> Flow[None]:
        """What the caller asked, and did not wait for, must be served first: it may go by another connection, and would
        leave a lock that nobody knows of."""
        while (asked := self._unanswered.get(token)) is not None and asked.under_way:
            if deadline.passed:
                raise NoAnswer("Redis did not answer in time")
            self._link.close_orphans()
            if asked.under_way:
                yield Ended(asked, deadline)
        self._unanswered.pop(token, None)

    def extend(self, leases: Sequence[tuple[str, str, float]], deadline: Deadline) -> Flow[list[bool | None]]:
        payload = b"".join([_extend(name, token.encode(), _milliseconds(ttl)) for name, token, ttl in leases])
        answers, _ = yield from self._ask_for(payload, deadline, len(leases), None)
        return [None if isinstance(answer, hiredis.ReplyError) else answer == 1 for answer in answers]

    def detach(self, name: str, token: str, ttl: float, deadline: Deadline) -> Flow[bool]:
        (answer,) = yield from self._ask(_detach(name, token.encode(), _milliseconds(ttl)), deadline)
        self._entries.pop(token, None)
        return bool(answer == 1)

    def rotate(self, old: str, wish: Wish, deadline: Deadline) -> Flow[int | None]:
        milliseconds = _milliseconds(wish.ttl)
        entry = self._entry(wish, milliseconds)
        (fence,) = yield from self._ask(
            _rotate(wish.name, old.encode("utf-8", "replace"), entry, milliseconds), deadline, about=wish.token
        )
        return None if fence is None else int(fence)

    def evict(self, name: str, deadline: Deadline) -> Flow[bool]:
        (answer,) = yield from self._ask(_evict(name, self._window_now()), deadline)
        return bool(answer == 1)

    def holder(self, name: str, deadline: Deadline) -> Flow[Holder | None]:
        (answer,) = yield from self._ask(_look(name), deadline)
        return None if answer is None else self._holder(name, answer)

    def holders(self, deadline: Deadline) -> Flow[list[Holder]]:
        names: set[str] = set()
        cursor = b"0"
        while True:
            scan = command(b"SCAN", cursor, b"MATCH", b"{*}:grant", b"COUNT", b"1000")
            ((cursor, keys),) = yield from self._ask(scan, deadline)
            names.update(key.decode("utf-8", "replace")[1 : -len(_GRANT_SUFFIX)] for key in keys)
            if cursor == b"0":
                break
        if not names:
            return []
        ordered = sorted(names)
        answers = yield from self._ask(b"".join([_look(name) for name in ordered]), deadline, len(ordered))
        return [self._holder(name, answer) for name, answer in zip(ordered, answers, strict=True) if answer is not None]

    def _holder(self, name: str, answer: list[Any]) -> Holder:
        fence, since, mailbox, _, _, about = [*answer[0].decode("utf-8", "replace").split(" ", 5), *[""] * 5][:6]
        told = _told(about)
        return Holder(
            key=name,
            owner="detached" if mailbox == "-" else str(told.get("owner", "")),
            pid=told.get("pid"),
            host=str(told.get("host", "")),
            since=float(since) if since else None,
            note=told.get("note"),
            fence=int(fence) if fence else None,
            waiting=answer[2],
            here=mailbox == self._mailbox.name,
        )

    # What is sent, and what comes back

    def _entry(self, wish: Wish, milliseconds: bytes) -> bytes:
        owner = b"-" if wish.owner is None else b"=" + escape(wish.owner).encode()
        return b" ".join(
            (wish.token.encode(), self._here, milliseconds, owner, _about(wish.holder, wish.note, fork.process))
        )

    def _window_now(self) -> bytes:
        return self._deaf_window if self._link.clustered else self._hearing_window

    def _ask(self, payload: bytes, deadline: Deadline, wanted: int = 1, *, about: str | None = None) -> Flow[list[Any]]:
        """The replies to the payload. Asked again if its connection ends before they come: all of it is idempotent."""
        replies, _ = yield from self._ask_for(payload, deadline, wanted, about)
        for reply in replies:
            if isinstance(reply, hiredis.ReplyError):
                raise self._refused(str(reply))
        return replies

    def _ask_for(
        self, payload: bytes, deadline: Deadline, wanted: int, about: str | None
    ) -> Flow[tuple[list[Any], bool]]:
        """The replies, and whether they are not the first: the server may have done it before. Of many replies some may
        be errors, not all: one key that went wrong is not the others' end."""
        disconnected = 0
        for _ in range(2 * _TRIES):
            if not self._link.ready:
                yield Opening(self._link, deadline, self._mailbox)
            request = Request(self._link, payload, deadline, wanted)
            if about is not None:
                self._unanswered[about] = request
            yield request
            if not request.done:
                raise NoAnswer("Redis did not answer in time")
            if about is not None:
                self._unanswered.pop(about, None)
            if request.error is not None:
                disconnected += 1
                if deadline.passed:
                    raise NoAnswer(str(request.error)) from None
                if disconnected < _TRIES:
                    continue
                raise BackendUnavailable(str(request.error)) from None
            errors = [str(reply) for reply in request.replies if isinstance(reply, hiredis.ReplyError)]
            if not errors:
                return request.replies, disconnected > 0
            if any(error.startswith("NOSCRIPT") for error in errors):
                yield Request(self._link, load(ALL), deadline, len(ALL))
            elif len(errors) < len(request.replies):
                return request.replies, disconnected > 0
            else:
                raise self._refused(errors[0])
        raise BackendUnavailable("Redis forgets its scripts")

    def _refused(self, message: str) -> BackendUnavailable:
        words = set(re.findall("[A-Z]{3,}", message))  # a script's error is wrapped, in other ways in other versions
        if words & _MOVED_ON:
            self._link.drop(message)
        hint = next((hint for kind, hint in _HINTS.items() if kind in words), "")
        return BackendUnavailable(f"Redis refused: {message}{hint}")

    # Messages

    def _heard(self, words: list[str]) -> None:
        match words:
            case ["offered", label]:
                self.messages.offered(label)
            case ["look", label, milliseconds]:
                self.messages.look_again(label, int(milliseconds) / 1000)
            case ["evicted", label, fence]:
                self.messages.taken_away(label, int(fence), "it was evicted")
            case ["retaken", label, fence]:
                self.messages.taken_away(label, int(fence), "it was taken up elsewhere, by its token or its owner")

    def _missed(self) -> None:
        self.messages.remade()


def _milliseconds(seconds: float) -> bytes:
    return b"%d" % ceil(min(seconds, 1e9) * 1000)  # no less than the caller counts on


@lru_cache(maxsize=1024)
def _about(holder: str, note: str | None, process: object) -> bytes:
    """What operators see. ``process``: the pid is another one after a fork."""
    about = {"owner": holder, "host": socket.gethostname(), "pid": os.getpid(), "note": note}
    return json.dumps({name: value for name, value in about.items() if value is not None}).encode()


def _told(about: str) -> dict[str, Any]:
    try:
        told = json.loads(about)
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}
