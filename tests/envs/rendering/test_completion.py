"""A completion's ids become one message, with an id of its own for every call."""

import json
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymnast.agents.loading.tiny import tiny_tokenizer
from gymnast.envs.rendering.renderer import Renderer

TOOLS = [{"type": "function", "function": {"name": "add", "description": "", "parameters": {}}}]
MISTRAL = (
    "{% if tools %}[TOOLS]{{ tools | tojson }}[/TOOLS]{% endif %}{% for m in messages %}"
    "{% if m.role == 'user' %}[INST]{{ m.content }}[/INST]"
    "{% elif m.role == 'tool' %}{% if m.tool_call_id | length != 9 %}"
    "{{ raise_exception('nine letters') }}{% endif %}[RESULT]{{ m.content }}[/RESULT]"
    "{% elif m.tool_calls %}[CALLS][{% for call in m.tool_calls %}"
    "{% if call.id | length != 9 %}{{ raise_exception('nine letters') }}{% endif %}"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}, '
    '"id": "{{ call.id }}"}{% if not loop.last %}, {% endif %}{% endfor %}]<|im_end|>'
    "{% else %}{{ m.content }}<|im_end|>{% endif %}{% endfor %}"
)
OWN = re.compile(r"[A-Za-z0-9]{9}")
QUESTION = {"role": "user", "content": "3?"}


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    tokenizer = tiny_tokenizer()
    words = ("TOOLS", "/TOOLS", "INST", "/INST", "RESULT", "/RESULT", "CALLS")
    tokenizer.add_tokens([f"[{word}]" for word in words])
    return tokenizer


@pytest.fixture(scope="module")
def hermes(tokenizer: Any) -> Renderer:
    return Renderer(tokenizer)


@pytest.fixture(scope="module")
def strict(tokenizer: Any) -> Renderer:
    """Its template writes ids, and refuses those that are not of nine letters and digits."""
    return Renderer(tokenizer, chat_template=MISTRAL)


def array(ids: list[int]) -> Any:
    """Ids as an engine may hand them over; their type is no `Sequence`."""
    return np.array(ids, dtype=np.int64)


def listed(*ids: Any) -> str:
    calls = [{"name": "add", "arguments": {}, "id": call_id} for call_id in ids]
    return "[CALLS]" + json.dumps(calls)


def ids_of(renderer: Renderer, text: str, context_ids: Any = ()) -> list[str]:
    ids = renderer.tokenizer.encode(text + "<|im_end|>", add_special_tokens=False)
    calls = renderer.parse(ids, context_ids=context_ids, tools=TOOLS)["tool_calls"]
    assert all(call.error is None for call in calls)
    return [call.id for call in calls]


def test_an_id_that_the_template_takes_is_kept(strict: Renderer) -> None:
    assert ids_of(strict, listed("abc123XYZ", "000000000")) == ["abc123XYZ", "000000000"]


@pytest.mark.parametrize(
    "written", ["call_1", "x" * 10, "", 7, None, "ab-123XYZ", "é12345678", "a\nb"]
)
def test_an_id_that_it_refuses_is_replaced(strict: Renderer, written: Any) -> None:
    context = strict.prompt([QUESTION], TOOLS)
    (own,) = ids_of(strict, listed(written), context)
    assert OWN.fullmatch(own)
    result = {"role": "tool", "content": "7", "tool_call_id": own, "name": "add"}
    action = strict.tokenizer.encode(listed(written) + "<|im_end|>")
    observed = strict.observe(context + action, [result], tools=TOOLS)
    assert strict.tokenizer.decode(observed) == "[RESULT]7[/RESULT]"


def test_no_two_calls_have_one_id(strict: Renderer) -> None:
    own = ids_of(strict, listed("abc123XYZ", "abc123XYZ", "call00001", "", ""), [5])
    assert own[0] == "abc123XYZ"
    assert len(set(own)) == 5


def test_ids_differ_from_turn_to_turn(hermes: Renderer) -> None:
    call = '<tool_call>{"name": "add", "arguments": {}}</tool_call>'
    first = ids_of(hermes, call * 3, [5] * 10)
    second = ids_of(hermes, call * 3, [5] * (10 + len(hermes.tokenizer.encode(call * 3))))
    assert len({*first, *second}) == 6


@pytest.mark.parametrize("length", [0, 99_999, 100_000, 1_234_567])
def test_ids_have_nine_letters_and_digits_however_long_the_context(
    strict: Renderer, length: int
) -> None:
    own = ids_of(strict, listed("", ""), np.zeros(length, dtype=np.int64))
    assert all(map(OWN.fullmatch, own))
    assert len(set(own)) == 2


def test_ids_may_come_as_arrays(hermes: Renderer, strict: Renderer) -> None:
    text = '<tool_call>{"name": "add", "arguments": {}}</tool_call><|im_end|>'
    ids = hermes.tokenizer.encode(text)
    context = hermes.prompt([QUESTION], TOOLS)
    expected = hermes.parse(ids, context_ids=context, tools=TOOLS)
    assert hermes.parse(array(ids), context_ids=array(context), tools=TOOLS) == expected
    result = {"role": "tool", "content": "7", "tool_call_id": "call00001", "name": "add"}
    observed = hermes.observe(array(context + ids), [result], tools=TOOLS)
    assert observed == hermes.observe(context + ids, [result], tools=TOOLS)
    assert strict.parse(array([]))["content"] == ""


@pytest.mark.parametrize("count", [0, 1, 2, 5])
def test_a_completion_of_stop_tokens_alone_says_nothing(hermes: Renderer, count: int) -> None:
    stop = hermes.stop_ids[0]
    message = hermes.parse([stop] * count)
    assert message["tool_calls"] == []
    assert message["content"] == hermes.tokenizer.decode([stop] * max(count - 1, 0))
    result = {"role": "user", "content": "Well?"}
    observed = hermes.observe([*hermes.prompt([QUESTION]), *[stop] * count], [result])
    text = "\n<|im_start|>user\nWell?<|im_end|>\n<|im_start|>assistant\n"
    assert hermes.tokenizer.decode(observed) == ("" if count else "<|im_end|>") + text


ODD = st.sampled_from(
    [
        "",
        " ",
        'a"b',
        "a'b",
        "a\nb",
        "{{ x }}",
        "<|im_end|>",
        "</tool_call>",
        "\ud800",
        "\x00",
        "é",
        "Zqone",
    ]
)


@given(name=ODD | st.text(), call_id=ODD | st.text(), content=ODD | st.text())
def test_whatever_a_model_names_can_be_answered(
    hermes: Renderer, strict: Renderer, name: str, call_id: str, content: str
) -> None:
    item = json.dumps({"name": name, "arguments": {"x": content}, "id": call_id})
    for renderer, text in (
        (hermes, f"<tool_call>{item}</tool_call>"),
        (strict, f"[CALLS][{item}]"),
    ):
        context = renderer.prompt([QUESTION], TOOLS)
        action = renderer.tokenizer.encode(text, add_special_tokens=False)
        message = renderer.parse(action, context_ids=context, tools=TOOLS)
        results = [
            {"role": "tool", "content": content, "tool_call_id": call.id, "name": call.name}
            for call in message["tool_calls"]
        ]
        assert len(results) == 1
        observed = renderer.observe(context + action, results, tools=TOOLS)
        stops = [number for number in observed if number in renderer.stop_ids]
        assert len(stops) == (2 if renderer is hermes else 1)
