"""The state machine of a command: the table says what was promised, and no walk through it breaks the rules."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.agents.machine import SUPERSEDED, TABLE, Actor, Intent, InvalidTransition, State, Step, allows, step

EVERYTHING = list(product(State, Actor, Intent))

PROMISED = """
IDLE            USER   COMMAND         COMMANDED
IDLE            AGENT  PROGRESS        PROCESSING
IDLE            AGENT  QUESTION        AWAITING_INPUT
IDLE            AGENT  COMPLETION      COMPLETE
IDLE            AGENT  END_OF_COMMAND  COMPLETE
COMMANDED       AGENT  PROGRESS        PROCESSING
COMMANDED       AGENT  QUESTION        AWAITING_INPUT
COMMANDED       AGENT  COMPLETION      COMPLETE
COMMANDED       AGENT  END_OF_COMMAND  COMPLETE
PROCESSING      AGENT  PROGRESS        PROCESSING
PROCESSING      AGENT  QUESTION        AWAITING_INPUT
PROCESSING      AGENT  COMPLETION      COMPLETE
PROCESSING      AGENT  END_OF_COMMAND  COMPLETE
PROCESSING      USER   COMMAND         PROCESSING
AWAITING_INPUT  USER   ANSWER          PROCESSING
AWAITING_INPUT  AGENT  COMPLETION      COMPLETE
AWAITING_INPUT  AGENT  END_OF_COMMAND  COMPLETE
"""


@pytest.mark.parametrize("line", PROMISED.split("\n")[1:-1])
def test_each_promised_row_is_there(line: str) -> None:
    state, actor, intent, then = line.split()
    assert step(State(state), Actor(actor), Intent(intent)) == Step(State(then))


def test_a_command_while_input_is_awaited_ends_the_old_one_and_opens_another() -> None:
    assert step(State.AWAITING_INPUT, Actor.USER, Intent.COMMAND) == Step(State.COMMANDED, opens_next=True)


def test_a_command_amid_work_is_part_of_it_unless_the_user_began_anew() -> None:
    assert step(State.PROCESSING, Actor.USER, Intent.COMMAND) == Step(State.PROCESSING)
    assert step(State.PROCESSING, Actor.USER, Intent.COMMAND, anew=True) == Step(State.COMMANDED, opens_next=True)
    assert set(SUPERSEDED) <= set(TABLE)


@pytest.mark.parametrize(("actor", "intent"), list(product(Actor, Intent)))
def test_nothing_follows_complete(actor: Actor, intent: Intent) -> None:
    assert not allows(State.COMPLETE, actor, intent)
    with pytest.raises(InvalidTransition):
        step(State.COMPLETE, actor, intent, anew=True)


@pytest.mark.parametrize(("state", "actor", "intent"), EVERYTHING)
def test_what_is_not_in_the_table_is_refused(state: State, actor: Actor, intent: Intent) -> None:
    if allows(state, actor, intent):
        step(state, actor, intent)
    else:
        with pytest.raises(InvalidTransition, match=str(intent)):
            step(state, actor, intent)


@given(st.lists(st.tuples(st.sampled_from(Actor), st.sampled_from(Intent), st.booleans())))
def test_any_story_keeps_the_rules(story: list[tuple[Actor, Intent, bool]]) -> None:
    state, opened, ended = State.IDLE, 0, 0
    for actor, intent, anew in story:
        if not allows(state, actor, intent):
            continue
        before, (state, opens_next) = state, step(state, actor, intent, anew=anew)
        opened += (before is State.IDLE) + opens_next
        ended += (state is State.COMPLETE) + opens_next
        assert state is not State.IDLE, "nobody gets back to having nothing to do but by a new command"
        if state is State.AWAITING_INPUT:
            assert actor is Actor.AGENT, "only the agent can make the user wait for itself"
        if state is State.COMPLETE:
            assert actor is Actor.AGENT, "only the agent completes"
            state = State.IDLE
        assert 0 <= opened - ended <= 1, "never two open commands"


def test_the_agent_can_always_end_what_is_open() -> None:
    for state in set(State) - {State.COMPLETE}:
        for intent in (Intent.COMPLETION, Intent.END_OF_COMMAND):
            assert step(state, Actor.AGENT, intent) == Step(State.COMPLETE)
