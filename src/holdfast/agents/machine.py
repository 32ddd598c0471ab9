"""The states of a command, as a table. Pure: whoever changes a command's state asks here first.

A command is what a user has asked an agent to do. IDLE is an agent without one; COMPLETE is the end of one.
"""

from __future__ import annotations

from enum import StrEnum
from types import MappingProxyType
from typing import Final, NamedTuple

from ..errors import LockError


class State(StrEnum):
    IDLE = "IDLE"
    COMMANDED = "COMMANDED"
    PROCESSING = "PROCESSING"
    AWAITING_INPUT = "AWAITING_INPUT"
    COMPLETE = "COMPLETE"


class Actor(StrEnum):
    USER = "USER"
    AGENT = "AGENT"


class Intent(StrEnum):
    COMMAND = "COMMAND"
    ANSWER = "ANSWER"
    QUESTION = "QUESTION"
    COMPLETION = "COMPLETION"
    PROGRESS = "PROGRESS"
    END_OF_COMMAND = "END_OF_COMMAND"


class Step(NamedTuple):
    """What becomes of a command."""

    state: State
    """The state of the command, or of the next one if this opens one."""
    opens_next: bool = False
    """The command at hand is COMPLETE now, and another one is open."""


class InvalidTransition(LockError, ValueError):
    """The state machine has no such row."""


_I, _C, _P, _A = State.IDLE, State.COMMANDED, State.PROCESSING, State.AWAITING_INPUT
_DONE: Final = State.COMPLETE
_USER, _AGENT = Actor.USER, Actor.AGENT

TABLE: Final = MappingProxyType(
    {
        # nothing was asked yet, as far as we know: the agent may be ahead of us
        (_I, _USER, Intent.COMMAND): Step(_C),
        (_I, _AGENT, Intent.PROGRESS): Step(_P),
        (_I, _AGENT, Intent.QUESTION): Step(_A),
        (_I, _AGENT, Intent.COMPLETION): Step(_DONE),
        (_I, _AGENT, Intent.END_OF_COMMAND): Step(_DONE),
        # asked; the agent has not been heard of
        (_C, _USER, Intent.COMMAND): Step(_C),
        (_C, _AGENT, Intent.PROGRESS): Step(_P),
        (_C, _AGENT, Intent.QUESTION): Step(_A),
        (_C, _AGENT, Intent.COMPLETION): Step(_DONE),
        (_C, _AGENT, Intent.END_OF_COMMAND): Step(_DONE),
        # at work; what the user adds belongs to it
        (_P, _USER, Intent.COMMAND): Step(_P),
        (_P, _AGENT, Intent.PROGRESS): Step(_P),
        (_P, _AGENT, Intent.QUESTION): Step(_A),
        (_P, _AGENT, Intent.COMPLETION): Step(_DONE),
        (_P, _AGENT, Intent.END_OF_COMMAND): Step(_DONE),
        # the user's turn
        (_A, _USER, Intent.ANSWER): Step(_P),
        (_A, _USER, Intent.COMMAND): Step(_C, opens_next=True),
        (_A, _AGENT, Intent.QUESTION): Step(_A),
        (_A, _AGENT, Intent.COMPLETION): Step(_DONE),
        (_A, _AGENT, Intent.END_OF_COMMAND): Step(_DONE),
        # COMPLETE has no rows: nothing follows it
    }
)

SUPERSEDED: Final = MappingProxyType(
    {
        (_C, _USER, Intent.COMMAND): Step(_C, opens_next=True),
        (_P, _USER, Intent.COMMAND): Step(_C, opens_next=True),
    }
)
"""Instead of the table's row when the user is known to have begun anew: the command before was broken off."""


def step(state: State, actor: Actor, intent: Intent, *, anew: bool = False) -> Step:
    """The row for this, or ``InvalidTransition``. ``anew``: the user has begun something else, not added to it."""
    row = (state, actor, intent)
    found = (SUPERSEDED.get(row) if anew else None) or TABLE.get(row)
    if found is None:
        raise InvalidTransition(f"{actor} {intent} has no meaning in {state}")
    return found


def allows(state: State, actor: Actor, intent: Intent) -> bool:
    return (state, actor, intent) in TABLE
