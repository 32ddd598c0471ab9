"""For tests: the contract that every engine keeps, real servers as fixtures, and processes that take locks on command.

To run the contract on an engine of your own, take the parts that it declares; a test says so if one is missing::

    from holdfast.testing import BetweenProcesses, EngineContract

    class TestMyEngine(EngineContract, BetweenProcesses):
        @pytest.fixture
        def target(self):
            return "my_package.engine:make_engine"  # or a URL
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .child import Child
    from .stopwatch import Stopwatch
    from .suite import (
        AsyncBetweenProcesses,
        AsyncDetaching,
        AsyncEngineContract,
        AsyncInOrderOfArrival,
        AsyncLeases,
        BetweenProcesses,
        Detaching,
        EngineContract,
        InOrderOfArrival,
        Leases,
    )
    from .target import PATIENCE, open_engine

__all__ = [
    "EngineContract",
    "AsyncEngineContract",
    # for what an engine declares
    "BetweenProcesses",
    "AsyncBetweenProcesses",
    "InOrderOfArrival",
    "AsyncInOrderOfArrival",
    "Detaching",
    "AsyncDetaching",
    "Leases",
    "AsyncLeases",
    "Child",
    "Stopwatch",
    "PATIENCE",
    "open_engine",
]

_ELSEWHERE = {"Child": "child", "Stopwatch": "stopwatch", "PATIENCE": "target", "open_engine": "target"}


def __getattr__(name: str) -> Any:
    # Late, so that the processes that tests start do not load pytest.
    if name not in __all__:
        raise AttributeError(f"module 'holdfast.testing' has no attribute {name!r}")
    return getattr(import_module(f"holdfast.testing.{_ELSEWHERE.get(name, 'suite')}"), name)
