"""`ScriptedAgent` says turn after turn of its script in every episode."""

import asyncio
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymnast.agents.base import Agent
from gymnast.agents.scripted import ScriptedAgent
from gymnast.errors import UsageError
from gymnast.types import Completion, Sampling


def say(agent: Agent, context: list[int], max_new_tokens: int = 512) -> Completion:
    return asyncio.run(agent.generate(context, Sampling(max_new_tokens=max_new_tokens)))


def test_an_episode_hears_the_turns_in_order() -> None:
    agent = ScriptedAgent([[10, 11], [12]])
    first = say(agent, [1, 2, 3])
    assert first == Completion([10, 11], [0.0, 0.0], "stop")
    assert say(agent, [1, 2, 3, *first.ids, 4, 5]) == Completion([12], [0.0], "stop")


def test_a_context_heard_before_gets_the_same_turn_again() -> None:
    agent = ScriptedAgent([[10], [11]])
    contexts = [[1], [1], [1, 10, 7], [1], [1, 10, 8], [1, 10]]
    assert [say(agent, context).ids for context in contexts] == [[10], [10], [11], [10], [11], [11]]


@given(st.data())
def test_episodes_that_interleave_each_hear_the_whole_script(data: st.DataObject) -> None:
    script = data.draw(st.lists(st.lists(st.integers(100, 104), min_size=1), min_size=1))
    # Prompts of ids below 50 and observations of 50 to 99, so no episode continues another's.
    prompts = data.draw(st.lists(st.lists(st.integers(0, 2), min_size=1), min_size=1, max_size=4))
    observation = st.lists(st.integers(50, 52), max_size=2)
    agent, rng = ScriptedAgent(script), random.Random(0)
    contexts = [list(prompt) for prompt in prompts]
    heard: list[list[list[int]]] = [[] for _ in prompts]
    waiting = [number for number in range(len(prompts)) for _ in script]
    rng.shuffle(waiting)
    for number in waiting:
        completion = say(agent, contexts[number])
        heard[number].append(completion.ids)
        contexts[number] += completion.ids + data.draw(observation)
    assert heard == [script] * len(prompts)


def test_a_turn_longer_than_allowed_is_cut() -> None:
    agent = ScriptedAgent([[10, 11, 12], [13]])
    assert say(agent, [1], max_new_tokens=2) == Completion([10, 11], [0.0, 0.0], "length")
    assert say(agent, [1, 10, 11, 5], max_new_tokens=2).ids == [13]
    assert say(agent, [2], max_new_tokens=3).stop == "stop"


def test_a_function_of_the_context_says_what_it_likes() -> None:
    agent = ScriptedAgent(lambda context: [context[-1] + 1] * 3)
    assert say(agent, [5]).ids == [6, 6, 6]
    assert say(agent, [5, 6], max_new_tokens=1) == Completion([7], [0.0], "length")


def test_a_script_that_runs_out_says_so() -> None:
    agent = ScriptedAgent([[10]])
    say(agent, [1])
    with pytest.raises(UsageError, match="the script has 1 turns, and an episode asks for one"):
        say(agent, [1, 10, 2])


def test_an_empty_turn_is_refused() -> None:
    with pytest.raises(UsageError, match="turn 1 is empty"):
        ScriptedAgent([[10], []])
