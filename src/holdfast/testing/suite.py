"""The contract, put together from its parts."""

from ._async.contract import AsyncBetweenProcesses, AsyncDetaching, AsyncEveryEngine, AsyncInOrderOfArrival
from ._async.interruptions import AsyncInterruptions
from ._sync.contract import BetweenProcesses, Detaching, EveryEngine, InOrderOfArrival
from ._sync.interruptions import Interruptions


class EngineContract(EveryEngine, Interruptions):
    """What every engine promises to ``Locks``."""


class AsyncEngineContract(AsyncEveryEngine, AsyncInterruptions):
    """What every engine promises to ``AsyncLocks``."""


__all__ = [
    "EngineContract",
    "AsyncEngineContract",
    "BetweenProcesses",
    "AsyncBetweenProcesses",
    "InOrderOfArrival",
    "AsyncInOrderOfArrival",
    "Detaching",
    "AsyncDetaching",
]
