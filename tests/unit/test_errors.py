import inspect
import pickle

import pytest

from holdfast import Key, LockError, NotAcquired, errors

KINDS = [kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, LockError)]


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_has_one_root_is_picklable_and_carries_its_key(kind: type[LockError]) -> None:
    error = kind("what happened", key=Key.of(1, 42))
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert str(copy) == "what happened"
    assert copy.key == Key.of(1, 42)


@pytest.mark.parametrize("kind", KINDS)
def test_the_docstring_is_the_default_message(kind: type[LockError]) -> None:
    assert str(kind()) == (kind.__doc__ or "").splitlines()[0]


def test_errors_are_what_callers_catch_them_as() -> None:
    assert issubclass(errors.NotAcquired, TimeoutError)
    assert issubclass(errors.InvalidKey, ValueError)
    assert issubclass(errors.InvalidOption, ValueError)
    assert issubclass(errors.MissingExtra, ImportError)
    assert errors.AdvisoryLockError is LockError
    assert NotAcquired("x").key is None
