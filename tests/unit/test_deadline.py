import math

import pytest

from holdfast import Deadline, InvalidOption, Locks
from holdfast.deadline import seconds


def test_a_deadline_is_one_instant_however_often_it_is_asked() -> None:
    deadline = Deadline.after(60)
    first = deadline.remaining
    assert 40 < deadline.remaining <= first <= 60
    assert not deadline.passed
    assert Deadline.after(0).passed
    assert Deadline.after(0).remaining == 0
    assert Deadline.after(None).remaining == math.inf
    assert not Deadline().passed


@pytest.mark.parametrize("bad", [-1, -0.001, math.nan, -math.inf, "5", True, [1]])
def test_a_bad_wait_is_refused_with_the_options_name(bad: object) -> None:
    locks = Locks.from_url("memory://bad-waits")
    for refuse in (
        lambda: locks.hold("a", wait=bad),  # type: ignore[arg-type]
        lambda: locks.hold_many(["a"], wait=bad),  # type: ignore[arg-type]
        lambda: Locks.from_url("memory://bad-waits", wait=bad),  # type: ignore[arg-type]
    ):
        with pytest.raises(InvalidOption, match="wait="):
            refuse()


def test_infinity_is_no_limit() -> None:
    assert seconds("wait", math.inf) is None
    assert seconds("wait", None) is None
    assert seconds("wait", 1) == 1.0
