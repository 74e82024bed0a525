"""Programs of real packages, unchanged: what the policy says reaches them, token by token."""

import asyncio
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from gymnast.agents import ScriptedAgent
from gymnast.envs import Renderer, make
from gymnast.trainers import collect
from gymnast.types import Branch, Sampling, StopReason, Trajectory

pytestmark = pytest.mark.adapters

FOLDER = Path(__file__).parent
QUESTION = "What is 3 times 4, times 5?"
AT_ONCE = 16


def calls(name: str, **arguments: Any) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    call = {"id": "call_0", "type": "function", "function": function}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def says(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


MULTIPLIES = [calls("multiply", a=3, b=4), calls("multiply", a=12, b=5)]
SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && echo 60"
# What the policy says in each program.
TURNS: dict[str, list[dict[str, Any]]] = {
    "openai_client": [*MULTIPLIES, says("It is 60.")],
    "anthropic_client": [*MULTIPLIES, says("It is 60.")],
    "openai_agents": [*MULTIPLIES, says("It is 60.")],
    "langgraph": [*MULTIPLIES, says("It is 60.")],
    "smolagents": [*MULTIPLIES, calls("final_answer", answer="It is 60.")],
    "mini_swe_agent": [
        calls("bash", command="echo $((3 * 4))"),
        calls("bash", command="echo $((12 * 5))"),
        calls("bash", command=SUBMIT),
    ],
    "curl.sh": [says("12."), says("It is 60."), says("It is 60, still.")],
    "pi.sh": [
        calls("bash", command="echo $((3 * 4))"),
        calls("bash", command="echo $((12 * 5))"),
        says("It is 60."),
    ],
}


# smolagents writes earlier calls into its next request as texts of its own: each request opens a
# context. The others send back what was said.
REWRITES = {"smolagents"}
Context = Trajectory | Branch


def program(name: str) -> dict[str, Any]:
    if name.endswith(".sh"):
        return {"command": ["sh", str(FOLDER / name)]}
    return {"function": f"{FOLDER / 'real_programs.py'}:{name}"}


def policy(renderer: Renderer, name: str, turns: list[list[int]]) -> ScriptedAgent:
    """Says one turn after the other; where requests open contexts, by how often it was called."""
    if name not in REWRITES:
        return ScriptedAgent(turns)
    say: Callable[[Sequence[int]], list[int]] = lambda ids: turns[  # noqa: E731
        renderer.decode(ids).count("Calling tools:")
    ]
    return ScriptedAgent(say)


def played(renderer: Renderer, name: str, turns: list[list[int]]) -> list[Trajectory]:
    settings = {**program(name), "episode_timeout_s": 120}
    collected = collect(
        lambda: make("gymnast/Program-v0", renderer, **settings),
        policy(renderer, name, turns),
        [{"prompt": QUESTION}] * AT_ONCE,
        group_size=1,
        sampling=Sampling(max_new_tokens=1000),
        concurrency=AT_ONCE,
    )
    return [trajectory for group in asyncio.run(collected) for trajectory in group]


def rendered(renderer: Renderer, context: Context) -> list[int]:
    """A context, made of its messages and of what was sampled in it."""
    tools: Any = list(context.tools) or None
    messages = context.messages
    said = [at for at, message in enumerate(messages) if message["role"] == "assistant"]
    said = [*said[-len(context.turns) :], len(messages)]  # others were in its prompt
    ids = renderer.prompt(messages[: said[0]], tools)
    for (start, end), at, following in zip(context.turns, said, said[1:], strict=False):
        ids += context.ids[start:end]
        given: list[Mapping[str, Any]] = [*messages[at + 1 : following]]
        ids += renderer.observe(ids, given, tools=tools) if given else []
    return ids


@pytest.mark.parametrize("name", TURNS)
def test_a_program_hears_what_was_sampled_token_by_token(renderer: Renderer, name: str) -> None:
    if name == "pi.sh" and shutil.which("pi") is None:
        pytest.fail("npm install -g @mariozechner/pi-coding-agent, and have it on PATH")
    turns = [renderer.encode(message) for message in TURNS[name]]
    trajectories = played(renderer, name, turns)
    assert len(trajectories) == AT_ONCE
    for trajectory in trajectories:
        assert trajectory.stop_reason is StopReason.environment
        assert trajectory.reward == 1.0, trajectory.messages
        assert len(trajectory.contexts) == (len(turns) if name in REWRITES else 1)
        said = [
            [context.ids[start:end] for start, end in context.turns]
            for context in trajectory.contexts
        ]
        assert trajectory.in_time(said) == turns
        sampled = sum(len(turn) for turn in turns)
        assert trajectory.action_tokens == sampled  # each in one context, and received
        for context in trajectory.contexts:
            assert context.ids == rendered(renderer, context)
        assert trajectory.metrics["program/requests"] == len(turns)
    last = trajectories[0].contexts[-1].messages
    assert any("60" in str(message.get("content")) or "60" in str(message) for message in last[-2:])
