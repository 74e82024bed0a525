"""Programs that send back what they were told, changed harmlessly: what is counted, what stays."""

from typing import Any

import numpy as np
import pytest

from gymnast.envs import Program, Renderer, make
from gymnast.types import Message, ToolCall
from program_fixtures import left_behind, script

pytestmark = pytest.mark.usefixtures("only_of_programs")

SAID: Message = {
    "role": "assistant",
    "content": "Adding.",
    "tool_calls": [ToolCall("c1", "add", {"a": 1, "b": 2})],
}
TWICE = """
told = ask(said)
call = told["tool_calls"][0] if told.get("tool_calls") else None
result = {{"role": "tool", "tool_call_id": call["id"] if call else "", "content": "3"}}
result = result if call else {{"role": "user", "content": "go on"}}
{change}
ask([*said, told, result])
"""
NOTHING = ""


def play(renderer: Renderer, message: Message, change: str, **settings: Any) -> Any:
    """Play a program that asks twice and changes what it was told in between.

    Returns:
        The ids by context, the metrics, and the ids that were sampled first.
    """
    env = make(Program, renderer, command=script(TWICE.format(change=change)), **settings)
    try:
        ids, info = env.reset(options={"row": {"prompt": "go"}, "branches": True})
        contexts = {0: list(map(int, ids))}
        sampled = renderer.encode(message)
        for action in (sampled, renderer.encode({"role": "assistant", "content": "It is 3."})):
            contexts[info["branch"]] += action
            ids, _, over, _, info = env.step(np.array(action))
            if not over:
                contexts.setdefault(info["branch"], []).extend(info.get("prompt_ids", ()))
                contexts[info["branch"]] += map(int, ids)
        assert over, "the program asks twice"
        return contexts, info["metrics"], sampled
    finally:
        env.close()
        assert not left_behind()


def changed(metrics: dict[str, float]) -> dict[str, float]:
    prefix = "program/changed/"
    return {k.removeprefix(prefix): v for k, v in metrics.items() if k.startswith(prefix)}


@pytest.mark.parametrize(
    ("rule", "change"),
    [
        ("arguments", "call['function']['arguments'] = '{\"b\":2,   \"a\":1}'"),
        ("content", "told['content'] += '\\n'"),
        ("ids", "call['id'] = result['tool_call_id'] = 'renamed'"),
    ],
)
def test_a_harmless_change_is_counted_and_changes_no_id(
    renderer: Renderer, rule: str, change: str
) -> None:
    plain, before, _ = play(renderer, SAID, NOTHING)
    assert changed(before) == {}
    contexts, metrics, sampled = play(renderer, SAID, change)
    assert changed(metrics) == {rule: 1.0}
    assert list(contexts) == [0] and metrics["program/branches"] == 1.0
    text, action = contexts[0], list(sampled)
    assert any(text[at : at + len(action)] == action for at in range(len(text)))
    assert renderer.tokenizer.decode(text) == renderer.tokenizer.decode(plain[0])
