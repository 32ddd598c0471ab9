"""The contract, put together from its parts."""

from ._async.declared import AsyncBetweenProcesses, AsyncDetaching, AsyncInOrderOfArrival
from ._async.endings import AsyncEndings
from ._async.interruptions import AsyncInterruptions
from ._async.leases import AsyncLeases
from ._async.turns import AsyncTakingTurns
from ._sync.declared import BetweenProcesses, Detaching, InOrderOfArrival
from ._sync.endings import Endings
from ._sync.interruptions import Interruptions
from ._sync.leases import Leases
from ._sync.turns import TakingTurns


class EngineContract(TakingTurns, Endings, Interruptions):
    """What every engine promises to ``Locks``."""


class AsyncEngineContract(AsyncTakingTurns, AsyncEndings, AsyncInterruptions):
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
    "Leases",
    "AsyncLeases",
]
