"""Templates whose turns, or calls, end in unusual ways."""

from typing import Any

import pytest

from gymnast.agents.loading.tiny import tiny_tokenizer
from gymnast.envs.rendering.renderer import Renderer
from gymnast.errors import TemplateError

TOOLS = [{"type": "function", "function": {"name": "add", "description": "", "parameters": {}}}]
QUESTION = {"role": "user", "content": "What is 3 plus 4?"}
CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": {"a": 3}}}
CALLING = {"role": "assistant", "content": "", "tool_calls": [CALL]}
RESULT = {"role": "tool", "content": "7", "tool_call_id": "c1", "name": "add"}


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens(["<|turn|>", "<|end|>", "<|/call|>", "<|/thought|>"])
    return tokenizer


def template_turn(
    renderer: Renderer, turn: dict[str, Any], after: list[dict[str, Any]]
) -> tuple[list[int], list[int], list[int]]:
    """The context, the action as the template itself writes it, and what then follows."""
    context = renderer.prompt([QUESTION], TOOLS)
    rest = renderer.prompt([QUESTION, turn, *after], TOOLS)[len(context) :]
    end = next(i for i, number in enumerate(rest) if number in renderer.stop_ids) + 1
    return context, rest[:end], rest[end:]


TURN = "{{ '<|turn|>' + message.role + '\n' + (message.content or '') }}"
CALLS = "{% for call in message.tool_calls or [] %}" + (
    "<call>{{ call.function | tojson }}</call>{% endfor %}"
)
PROMPT = "{% if add_generation_prompt %}<|turn|>assistant\n{% endif %}"


def unusual(tokenizer: Any, end: str, calls: str = CALLS) -> Renderer:
    template = "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}"
    template += "{% for message in messages %}" + TURN + calls + end + "{% endfor %}" + PROMPT
    return Renderer(tokenizer, chat_template=template.replace("\n", "\\n", 1))


def test_a_turn_of_calls_may_end_with_a_token_of_its_own(tokenizer: Any) -> None:
    end = "{{ '<|/call|>' if message.tool_calls else '<|end|>' }}\n"
    renderer = unusual(tokenizer, end)
    names = set(tokenizer.convert_ids_to_tokens(renderer.stop_ids))
    assert names == {"<|end|>", "<|/call|>", "<|im_end|>"}
    context, action, rest = template_turn(renderer, CALLING, [RESULT])
    assert action[-1] == tokenizer.convert_tokens_to_ids("<|/call|>")
    assert len(renderer.parse(action)["tool_calls"]) == 1
    assert renderer.observe(context + action, [RESULT], tools=TOOLS) == rest


def test_a_turn_may_be_ended_by_the_next_ones_first_token(tokenizer: Any) -> None:
    renderer = unusual(tokenizer, "")
    assert tokenizer.convert_tokens_to_ids("<|turn|>") in renderer.stop_ids
    context, action, rest = template_turn(renderer, CALLING, [RESULT])
    assert action[-1] == tokenizer.convert_tokens_to_ids("<|turn|>")
    assert renderer.observe(context + action, [RESULT], tools=TOOLS) == rest
    # Ended by EOS instead, the next turn's token is still to be written.
    other = [*action[:-1], tokenizer.eos_token_id]
    assert renderer.observe(context + other, [RESULT], tools=TOOLS) == [action[-1], *rest]


def test_markup_before_the_end_belongs_to_the_end(tokenizer: Any) -> None:
    renderer = unusual(tokenizer, "<|/thought|><|im_end|>\n")
    answer = {"role": "assistant", "content": "7"}
    after = [{"role": "user", "content": "Sure?"}]
    context, action, rest = template_turn(renderer, answer, after)
    assert renderer.stop_ids == (tokenizer.eos_token_id,)
    assert renderer.parse(action)["content"] == "7"
    assert renderer.observe(context + action, after, tools=TOOLS) == rest


@pytest.mark.parametrize(
    "calls",
    [
        # The second call is written otherwise; a turn's end comes before the call.
        "{% for call in message.tool_calls or [] %}{{ '<call>' if loop.first else 'and' }}"
        "{{ call.function | tojson }}{{ '</call>' if loop.first }}{% endfor %}",
        "{% for call in message.tool_calls or [] %}<|end|><|turn|>call\n"
        "{{ call.function | tojson }}{% endfor %}",
    ],
)
def test_calls_that_would_be_misread_are_refused(tokenizer: Any, calls: str) -> None:
    with pytest.raises(TemplateError, match="writes a call of zqfirst"):
        unusual(tokenizer, "<|end|>", calls)


def test_markup_may_hold_the_calls_id(tokenizer: Any) -> None:
    calls = "{% for call in message.tool_calls or [] %}<call {{ call.id }}>"
    calls += "{{ call.function | tojson }}</call>{% endfor %}"
    renderer = unusual(tokenizer, "<|end|>", calls)
    text = '<call abc-1>{"name": "add", "arguments": {}}</call><|end|>'
    (call,) = renderer.parse(tokenizer.encode(text))["tool_calls"]
    assert (call.id, call.name, call.error) == ("abc-1", "add", None)
