"""Programs of OpenAI's client that send back what the policy said, with its thoughts or without."""

from collections.abc import Callable
from typing import Any

import numpy as np
import openai
import pytest

from gymnast.agents.loading.tiny import CHAT_TEMPLATE
from gymnast.envs import Program, Renderer, make
from gymnast.types import Message

THINKING = CHAT_TEMPLATE.replace(
    "+ (message.content or '')",
    "+ ('<think>\\n' + message.reasoning_content + '\\n</think>\\n\\n' "
    "if message.reasoning_content else '') + (message.content or '')",
)
SAID: list[Message] = [
    {"role": "assistant", "content": "Five.", "reasoning_content": "Two and three."},
    {"role": "assistant", "content": "Six.", "reasoning_content": "One more."},
    {"role": "assistant", "content": "Seven."},
]


def asks(returned: Callable[[Any], Any]) -> Callable[..., None]:
    """A program that asks three times, and returns what it was told in a form of its own."""

    def program(base_url: str, api_key: str, task: dict[str, Any]) -> None:
        messages: list[Any] = [{"role": "user", "content": task["prompt"]}]
        with openai.OpenAI(base_url=base_url, api_key=api_key, max_retries=0) as client:
            for _ in SAID:
                asked = client.chat.completions.create(model="policy", messages=messages)
                more = {"role": "user", "content": "And one more?"}
                messages += [returned(asked.choices[0].message), more]

    return program


def whole(message: Any) -> Any:
    return message


def without_thought(message: Any) -> Any:
    return {"role": "assistant", "content": message.content}


def another_thought(message: Any) -> Any:
    return {**message.model_dump(exclude_none=True), "reasoning_content": "I guess."}


def named(message: Any) -> Any:
    return {**message.model_dump(exclude_none=True), "name": "policy"}


@pytest.fixture(scope="module")
def thinking(tokenizer: Any) -> Renderer:
    """A renderer whose template writes every thought."""
    return Renderer(tokenizer, chat_template=THINKING)


def play(renderer: Renderer, returned: Callable[[Any], Any], **settings: Any) -> Any:
    """Play a program; return the ids of its contexts, those of its actions, and the metrics."""
    env = make(Program, renderer, function=asks(returned), **settings)
    try:
        ids, info = env.reset(options={"row": {"prompt": "Two plus three?"}, "branches": True})
        contexts = {0: ids.tolist()}
        actions = [renderer.encode(message) for message in SAID]
        for action in actions:
            contexts[info["branch"]] += action
            ids, reward, over, _, info = env.step(np.array(action))
            if not over:
                contexts.setdefault(info["branch"], list(info.get("prompt_ids", ())))
                contexts[info["branch"]] += ids.tolist()
        assert over and reward == 1.0
        return contexts, actions, info["metrics"]
    finally:
        env.close()


def changed(metrics: dict[str, float]) -> dict[str, float]:
    prefix = "program/changed/"
    return {k.removeprefix(prefix): v for k, v in metrics.items() if k.startswith(prefix)}


@pytest.mark.parametrize("reasoning", ["keep", "branch"])
def test_thoughts_that_come_back_are_no_change(thinking: Renderer, reasoning: str) -> None:
    contexts, _, metrics = play(thinking, whole, reasoning=reasoning)
    assert list(contexts) == [0] and changed(metrics) == {}


def test_thoughts_that_are_left_out_stay_in_the_context_and_are_counted(thinking: Renderer) -> None:
    same, _, _ = play(thinking, whole)
    contexts, _, metrics = play(thinking, without_thought)
    assert contexts == same
    assert changed(metrics) == {"reasoning": 2.0} and metrics["program/branches"] == 1.0


def test_a_context_can_be_opened_for_what_the_policy_will_see(thinking: Renderer) -> None:
    contexts, actions, metrics = play(thinking, without_thought, reasoning="branch")
    assert changed(metrics) == {} and metrics["program/branches"] == 3.0
    asked: list[Message] = [{"role": "user", "content": "Two plus three?"}]
    for branch, (message, action) in enumerate(zip(SAID, actions, strict=True)):
        assert contexts[branch] == [*thinking.prompt(asked), *action]
        asked += [
            {"role": "assistant", "content": message["content"]},
            {"role": "user", "content": "And one more?"},
        ]


@pytest.mark.parametrize("reasoning", ["keep", "branch"])
def test_another_thought_opens_a_context(thinking: Renderer, reasoning: str) -> None:
    contexts, _, metrics = play(thinking, another_thought, reasoning=reasoning)
    assert list(contexts) == [0, 1, 2] and changed(metrics) == {}


def test_a_further_field_is_counted(thinking: Renderer) -> None:
    same, _, _ = play(thinking, whole)
    contexts, _, metrics = play(thinking, named)
    assert contexts == same and changed(metrics) == {"fields": 2.0}
