"""A conversation laid out as an episode has the tokens that the environment gives for it."""

import asyncio
import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gymnast.agents import ScriptedAgent
from gymnast.envs import Environment, Renderer, tool
from gymnast.errors import DataError
from gymnast.trainers import rollout
from gymnast.trainers.conversations.play import play_messages
from gymnast.trainers.demonstrations.layout import trajectory_of, with_tokens

TEMPLATES = Path(__file__).parents[2] / "envs/rendering/chat_templates"
NAMES = ["hermes", "xml", "sectioned", "bare", "listed", "named", "action", "without_tools"]


class Desk(Environment):
    """Two tools, one of which ends the episode."""

    @tool
    def add(self, a: int, b: int) -> int:
        """Add two integers.

        Args:
            a: The first.
            b: The second.
        """
        return a + b

    @tool(stop=True)
    def submit(self, answer: str) -> str:
        """Hand an answer in.

        Args:
            answer: The answer.
        """
        return "thanks"


@pytest.fixture(scope="module")
def renderers(tokenizer: Any) -> dict[str, Renderer]:
    made = {}
    for name in NAMES:
        own = copy.deepcopy(tokenizer)
        if name in ("listed", "bare"):
            own.eos_token = "<|endoftext|>"
        template = None if name == "hermes" else (TEMPLATES / f"{name}.jinja").read_text()
        made[name] = Renderer(own, chat_template=template)
    return made


def calling(name: str, **arguments: Any) -> dict[str, Any]:
    call = {"id": "callid001", "type": "function", "function": {"name": name}}
    call["function"]["arguments"] = arguments  # type: ignore[index]
    return {"role": "assistant", "content": "", "tool_calls": [call]}


numbers = st.integers(-99, 99)
adding = st.builds(lambda a, b: calling("add", a=a, b=b), numbers, numbers)
words = st.text("abc xyz,.<>{}\n\u00e9", min_size=1, max_size=12).map(lambda t: f"So {t} it is.")
saying = words.map(lambda text: {"role": "assistant", "content": text})
# A tag in an argument cannot be said where arguments are tags themselves.
untagged = words.filter(lambda text: not re.search("<[^<>]+>", text))
submitting = untagged.map(lambda text: calling("submit", answer=text))
worked = st.booleans()


def start(with_worked_turns: bool) -> list[dict[str, Any]]:
    shown = [
        {"role": "user", "content": "What is 1 + 2?"},
        calling("add", a=1, b=2),
        {"role": "tool", "tool_call_id": "callid001", "name": "add", "content": "3"},
        {"role": "assistant", "content": "3"},
    ]
    return [*(shown if with_worked_turns else []), {"role": "user", "content": "And 3 + 4?"}]


@pytest.mark.parametrize("name", NAMES)
@given(calls=st.lists(adding, max_size=3), last=st.one_of(saying, submitting), worked=worked)
@settings(max_examples=6)
def test_the_tokens_are_those_of_an_episode_in_which_an_agent_says_the_messages(
    name: str, calls: list[Any], last: Any, worked: bool, renderers: dict[str, Renderer]
) -> None:
    renderer, said = renderers[name], [*calls, last]
    env, row = Desk(renderer=renderer), {"prompt": start(worked)}

    async def both() -> Any:
        left = iter(said)

        async def speaker(messages: Any, tools: Any) -> Any:
            return next(left)

        spoken = await play_messages(env, speaker, row)
        actions = [renderer.encode(message, tools=spoken.tools) for message in said]
        return spoken, await rollout(env, ScriptedAgent(actions), row)

    spoken, sampled = asyncio.run(both())
    env.close()
    laid_out = with_tokens(spoken, renderer)
    assert laid_out.ids == sampled.ids
    assert laid_out.action_mask == sampled.action_mask
    assert laid_out.turns == sampled.turns and laid_out.prompt_length == sampled.prompt_length
    assert (laid_out.reward, laid_out.stop_reason) == (spoken.reward, sampled.stop_reason)


def test_every_token_of_the_policy_is_trained_and_no_other(
    renderer: Renderer, tokenizer: Any, calls: Callable[..., Any]
) -> None:
    answer = {"role": "tool", "tool_call_id": "id0", "name": "add", "content": "5"}
    asked = calls(("add", {"a": 2, "b": 3}))
    said = {"role": "assistant", "content": "5"}
    laid_out = trajectory_of(
        [{"role": "user", "content": "Go."}, asked, answer, said], (), renderer
    )
    actions = [laid_out.ids[start:end] for start, end in laid_out.turns]
    assert actions == [renderer.encode(asked), renderer.encode(said)]
    masked = [i for i, bit in zip(laid_out.ids, laid_out.action_mask, strict=True) if bit]
    assert masked == [number for action in actions for number in action]
    assert all(action[-1] in renderer.stop_ids for action in actions)


def test_a_worked_turn_in_the_prompt_is_not_the_policys(renderer: Renderer) -> None:
    conversation = [*start(True), {"role": "assistant", "content": "7"}]
    laid_out = trajectory_of(conversation, (), renderer, turns=1)
    assert laid_out.action_tokens == len(renderer.encode({"role": "assistant", "content": "7"}))
    assert laid_out.ids[: laid_out.prompt_length] == renderer.prompt(start(True))
    assert len(trajectory_of(conversation, (), renderer).turns) == 3, "all, where nobody says"


@pytest.mark.parametrize(
    ("messages", "turns", "message"),
    [
        (
            [{"role": "user", "content": "Go."}],
            None,
            "must hold at least one of the assistant, got 0",
        ),
        ([], None, "the roles are none"),
        (
            [{"role": "assistant", "content": "7"}],
            2,
            "must hold at least 2 of the assistant, got 1",
        ),
    ],
)
def test_a_conversation_without_the_policys_messages_is_refused(
    messages: list[Any], turns: int | None, message: str, renderer: Renderer
) -> None:
    with pytest.raises(DataError, match=message):
        trajectory_of(messages, (), renderer, turns=turns)
