"""Who receives on the connection that threads share, with a server that says what the test wants, when it wants."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from holdfast.deadline import Deadline
from holdfast.engines.redis.requests import Request
from holdfast.engines.redis.wire import ThreadWire
from holdfast.testing import PATIENCE
from waiting import wait_until


class Asker:
    """A thread with one request."""

    def __init__(self, wire: ThreadWire, wait: float) -> None:
        self.request = Request(None, b"question\r\n", Deadline.after(wait))  # type: ignore[arg-type]
        self._thread = threading.Thread(target=wire.exchange, args=[self.request], daemon=True)
        self._thread.start()
        wait_until(lambda: self.request in wire.pending, "it has asked")

    def has_left(self) -> bool:
        self._thread.join(PATIENCE)
        return not self._thread.is_alive()


class Talk:
    def __init__(self) -> None:
        ours, self.server = socket.socketpair()
        self.unattended = threading.Event()
        self.wire = ThreadWire(ours, self.unattended.set)

    def asker(self, wait: float = PATIENCE) -> Asker:
        return Asker(self.wire, wait)

    def answer(self, count: int = 1) -> None:
        self.server.sendall(b"+yes\r\n" * count)


@pytest.fixture
def talk() -> Iterator[Talk]:
    talk = Talk()
    yield talk
    talk.wire.close()
    talk.server.close()


def test_who_leaves_at_its_deadline_while_it_receives_for_all_hands_that_on(talk: Talk) -> None:
    first = talk.asker()
    hasty = talk.asker(wait=0.2)
    patient = talk.asker()
    talk.answer()
    assert first.has_left() and first.request.done
    assert hasty.has_left() and not hasty.request.done  # it received, and nothing came
    talk.answer(2)
    assert patient.has_left() and patient.request.done


def test_who_leaves_last_leaves_its_answer_to_somebody_who_attends(talk: Talk) -> None:
    first = talk.asker()
    hasty = talk.asker(wait=0.2)
    talk.answer()
    assert first.has_left()
    assert hasty.has_left() and not hasty.request.done
    assert talk.unattended.wait(PATIENCE)
    talk.answer()
    talk.wire.attend()
    assert hasty.request.done and not talk.wire.pending
