"""For tests: the contract that every engine keeps, real servers as fixtures, and processes that take locks on command.

To run the contract on an engine of your own, take the parts that it declares; a test says so if one is missing::

    from holdfast.testing import BetweenProcesses, EngineContract

    class TestMyEngine(EngineContract, BetweenProcesses):
        @pytest.fixture
        def target(self):
            return "my_package.engine:make_engine"  # or a URL
"""

from ._async.contract import AsyncBetweenProcesses, AsyncDetaching, AsyncEveryEngine, AsyncInOrderOfArrival
from ._async.interruptions import AsyncInterruptions
from ._sync.contract import BetweenProcesses, Detaching, EveryEngine, InOrderOfArrival
from ._sync.interruptions import Interruptions
from .child import Child
from .target import PATIENCE, open_engine


class EngineContract(EveryEngine, Interruptions):
    """What every engine promises to ``Locks``."""


class AsyncEngineContract(AsyncEveryEngine, AsyncInterruptions):
    """What every engine promises to ``AsyncLocks``."""


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
    "Child",
    "PATIENCE",
    "open_engine",
]
