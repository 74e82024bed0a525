"""Conversations with several messages of a user: their ids, masks and rewards, turn by turn."""

import asyncio
import copy
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chat_fixtures import Endpoint
from chat_fixtures import says as answers
from gymnast.agents import ChatAgent, ScriptedAgent
from gymnast.envs import Environment, Renderer, tool
from gymnast.trainers import collect, play_solution, rollout
from gymnast.trainers.demonstrations.layout import with_tokens
from gymnast.types import Sampling, StopReason, Trajectory

TEMPLATES = Path(__file__).parents[2] / "envs/rendering/chat_templates"
# Not "listed", which writes white space around texts that actions do not have.
NAMES = ["hermes", "xml", "sectioned", "bare", "named", "action", "invented"]
NAMES += ["alternating", "without_tools"]
Message = dict[str, Any]


def says(text: str) -> Message:
    return {"role": "assistant", "content": text}


class Talk(Environment):
    """Says the row's replies, one after the other."""

    def setup(self, row: Any) -> None:
        self.replies = list(row["replies"])

    @tool
    def add(self, a: int, b: int) -> int:
        """Add two integers."""
        return a + b

    async def respond(self, message: Any) -> Any:
        return [{"role": "user", "content": self.replies.pop(0)}] if self.replies else None

    def turn_reward(self, turn: Any) -> float:
        return len(turn.results) * (1.0 if turn.calls else 0.5)

    def reward(self, episode: Any) -> float:
        return float(episode.answer == "Bye.")

    def solve(self, row: Any) -> Any:
        for number, _ in enumerate(row["replies"]):
            yield f"Answer {number}."
        yield "Bye."


@pytest.fixture(scope="module")
def renderers(tokenizer: Any) -> dict[str, Renderer]:
    made = {}
    for name in NAMES:
        own = copy.deepcopy(tokenizer)
        if name == "bare":
            own.eos_token = "<|endoftext|>"
        template = None if name == "hermes" else (TEMPLATES / f"{name}.jinja").read_text()
        own.add_tokens(re.findall(r"<\|/?\w+\|>|\[/?[A-Z_]{4,}\](?!\])", template or ""))
        made[name] = Renderer(own, chat_template=template)
    return made


def adds(a: int, b: int) -> Message:
    function = {"name": "add", "arguments": {"a": a, "b": b}}
    called = {"id": "callid001", "type": "function", "function": function}
    return {"role": "assistant", "content": "", "tool_calls": [called]}


texts = st.text("abc xyz,.<>{}\n\u00e9", max_size=12).map(lambda text: f"So {text} it is.")
spelled = st.sampled_from(
    ["<|im_end|>", "<|im_start|>assistant\nMe.", "[/INST]", " ", "<tool_call>"]
)
calling = st.builds(adds, st.integers(-99, 99), st.integers(-99, 99))
# What the policy says before the user's next word, and this word.
exchanges = st.tuples(st.lists(calling, max_size=2), texts.map(says), texts | spelled)


@pytest.mark.parametrize("name", NAMES)
@given(talk=st.lists(exchanges, max_size=3))
@settings(max_examples=8)
def test_the_ids_are_those_of_the_template_and_only_the_policys_are_masked(
    name: str, talk: Sequence[Any], renderers: dict[str, Renderer]
) -> None:
    renderer = renderers[name]
    said = [m for calls, answer, _ in talk for m in (*calls, answer)] + [says("Bye.")]
    env = Talk(renderer)
    actions = [renderer.encode(message, tools=env.tools) for message in said]
    row = {"prompt": "Hello.", "replies": [reply for *_, reply in talk]}
    played = asyncio.run(rollout(env, ScriptedAgent(actions), row))
    env.close()
    assert played.stop_reason == StopReason.answered and played.reward >= 1
    spoken = [n for n, message in enumerate(played.messages) if message["role"] == "assistant"]
    assert len(spoken) == len(said) == len(played.turns)
    mask = [0] * len(played.ids)
    for place, action, span in zip(spoken, actions, played.turns, strict=True):
        before = renderer.prompt(played.messages[:place], env.tools)  # the template's, as a whole
        whole = [*before, *action]
        assert played.ids[: len(whole)] == whole
        assert tuple(span) == (len(before), len(whole))
        mask[slice(*span)] = [1] * len(action)
    assert played.ids[len(whole) :] == []
    assert played.action_mask == mask
    laid_out = with_tokens(played, renderer)  # and so learns a demonstration
    assert (laid_out.ids, laid_out.action_mask) == (played.ids, mask)


REPLIES = ["And then?", "Are you sure?"]
ROW = {"prompt": "Hello.", "replies": REPLIES}


def rewards(played: Trajectory) -> list[float]:
    return [float(reward) for reward in played.turn_rewards]


def test_wrapped_and_awaited_environments_play_the_same(
    renderer: Renderer, say: Callable[..., list[int]]
) -> None:
    actions = [say("Hm."), say("", ("add", {"a": 1, "b": 2})), say("3"), say("Bye.")]
    kinds = (Talk, lambda renderer: gymnasium.wrappers.OrderEnforcing(Talk(renderer)))
    first, second = [
        asyncio.run(rollout(kind(renderer), ScriptedAgent(actions), ROW)) for kind in kinds
    ]
    assert first.ids == second.ids and first.action_mask == second.action_mask
    assert rewards(first) == rewards(second) == [0.5, 1.0, 0.5, 1.0]
    assert first.reward == 3.0


def test_many_conversations_are_collected_in_groups(
    renderer: Renderer, say: Callable[..., list[int]]
) -> None:
    agent = ScriptedAgent([say("Hm."), say("Yes."), say("Bye.")])
    rows = [{**ROW, "replies": REPLIES[:count]} for count in (0, 1, 2)]
    rollouts = asyncio.run(
        collect(lambda: Talk(renderer), agent, rows, group_size=2, sampling=Sampling())
    )
    turns = [[len(member.turns) for member in group] for group in rollouts]
    assert turns == [[1, 1], [2, 2], [3, 3]]


def test_a_model_behind_an_endpoint_hears_the_users_next_message(endpoint: Endpoint) -> None:
    endpoint.answers(answers("Hm."), answers("Yes."), answers("Bye."))
    agent = ChatAgent("m", base_url=endpoint.url, api_key_env=None)
    played = asyncio.run(rollout(Talk(), agent, ROW))
    assert (played.reward, played.stop_reason) == (2.0, StopReason.answered)
    heard = [[m["content"] for m in request["messages"]] for request in endpoint.requests]
    assert heard[-1] == ["Hello.", "Hm.", "And then?", "Yes.", "Are you sure?"]
    assert [len(messages) for messages in heard] == [1, 3, 5]


def test_a_solution_is_a_demonstration_of_the_whole_conversation(renderer: Renderer) -> None:
    played = asyncio.run(play_solution(Talk(), ROW))
    assert [m["content"] for m in played.messages[1::2]] == ["Answer 0.", "Answer 1.", "Bye."]
    laid_out = with_tokens(played, renderer)
    masked = [n for n, bit in zip(laid_out.ids, laid_out.action_mask, strict=True) if bit]
    assert renderer.decode(masked) == "".join(
        f"{text}<|im_end|>" for text in ("Answer 0.", "Answer 1.", "Bye.")
    )
