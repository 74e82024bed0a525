"""White space between pieces of markup is free, in every dialect; a value's own is kept."""

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from call_dialects import FAMILIES, renderer_of, written

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "f",
            "description": "",
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "integer"}, "s": {"type": "string"}},
            },
        },
    }
]
TAG = re.compile(r"<[^<>]+>|\[[A-Z_]+\]|```(?:json)?")
SPACE = st.sampled_from(["", "", " ", "\n", "\n\n", " \n\t"])


def read(family: str, text: str) -> list[tuple[str, dict[str, Any], str | None]]:
    renderer = renderer_of(family)
    ids = renderer.tokenizer.encode(text + "<|im_end|>", add_special_tokens=False)
    message = renderer.parse(ids, tools=TOOLS)
    assert message["content"] == ""
    return [(call.name, call.arguments, call.error) for call in message["tool_calls"]]


@pytest.mark.parametrize(
    ("family", "text"),
    [
        (
            "qwen3 coder",
            "<tool_call><function=f><parameter=a>1</parameter></function></tool_call>",
        ),
        (
            "qwen3 coder",
            "<tool_call>\n<function=f>\n<parameter=a>\n1\n</parameter>\n</function></tool_call>",
        ),
        (
            "seed-oss",
            "<seed:tool_call><function=f><parameter=a>1</parameter></function></seed:tool_call>",
        ),
        ("glm-4.6", "<tool_call>f<arg_key>a</arg_key><arg_value>1</arg_value></tool_call>"),
        ("glm-4.6", "<tool_call>f\n<arg_key>a</arg_key><arg_value>1</arg_value>\n</tool_call>"),
        ("glm-4.7", "<tool_call>f<arg_key>a</arg_key>\n<arg_value>1</arg_value></tool_call>"),
        ("glm-4.7", "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>"),
        (
            "kimi-k2",
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0 "
            '<|tool_call_argument_begin|>{"a": 1}<|tool_call_end|><|tool_calls_section_end|>',
        ),
        (
            "deepseek-v3",
            "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n"  # noqa: RUF001
            '```json\n{"a": 1}\n```\n<｜tool▁call▁end｜><｜tool▁calls▁end｜>',  # noqa: RUF001
        ),
        ("internlm2", '<|action_start|>\n<|plugin|> {"name": "f", "arguments": {"a": 1}}\n'
         "<|action_end|>"),
    ],
)  # fmt: skip
def test_markup_may_stand_closer_or_wider_than_the_template_writes_it(
    family: str, text: str
) -> None:
    assert read(family, text) == [("f", {"a": 1}, None)]


@given(data=st.data())
@settings(max_examples=15)
@pytest.mark.parametrize("family", FAMILIES)
def test_white_space_around_any_tag_says_nothing(family: str, data: st.DataObject) -> None:
    text = written(family, ("f", {"a": 1}))
    if data.draw(st.booleans()):
        text = re.sub(r"(?<=[>\]])\s+|\s+(?=[<\[])", "", text)
    text = TAG.sub(lambda tag: data.draw(SPACE) + tag[0] + data.draw(SPACE), text)
    assert read(family, text) == [("f", {"a": 1}, None)]


@pytest.mark.parametrize(
    ("family", "text", "value"),
    [
        ("qwen3 coder", "<parameter=s>\n x\n\n</parameter>", " x\n"),
        ("qwen3 coder", "<parameter=s>x\n</parameter>", "x"),
        ("qwen3 coder", "<parameter=s>\nx</parameter>", "x"),
        ("qwen3 coder", "<parameter=s> x </parameter>", " x "),
        ("glm-4.6", "<arg_key>s</arg_key>\n<arg_value>\nx </arg_value>", "\nx "),
        ("glm-4.7", "<arg_key> s </arg_key> <arg_value> x</arg_value>", " x"),
        ("minimax-m2", '<parameter name="s">\nx\n</parameter>', "\nx\n"),
    ],
)
def test_a_text_keeps_its_own_white_space(family: str, text: str, value: str) -> None:
    call = written(family, ("f", {"s": "Zq"}))
    argument = re.compile(r"<(parameter|arg_key).*</(parameter|arg_value)>", re.DOTALL)
    assert read(family, argument.sub(lambda _: text, call)) == [("f", {"s": value}, None)]


@pytest.mark.parametrize("space", ["", "\n"])
def test_an_argument_that_is_not_closed_does_not_swallow_the_next(space: str) -> None:
    text = (
        f"<tool_call><function=f><parameter=s>{space}x{space}<parameter=a>{space}1{space}"
        "</parameter></function></tool_call>"
    )
    renderer = renderer_of("qwen3 coder")
    (call,) = renderer.parse(renderer.tokenizer.encode(text), tools=TOOLS)["tool_calls"]
    assert "the argument 's' is not closed by '</parameter>'" in (call.error or "")
