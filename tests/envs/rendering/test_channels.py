"""Turns in parts under headers: no header and no joint is ever content."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymnast.agents.loading.tiny import tiny_tokenizer
from gymnast.envs.rendering.channels import Channels
from gymnast.envs.rendering.renderer import Renderer

TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}<|end|>{% endif %}"
    "{% for m in messages %}{% if m.role == 'tool' %}<|start|>tool<|message|>{{ m.content }}<|end|>"
    "{% elif m.role == 'user' %}<|start|>user<|message|>{{ m.content }}<|end|>{% else %}"
    "<|start|>assistant{% if m.thinking %}<|channel|>analysis<|message|>{{ m.thinking }}<|end|>"
    "<|start|>assistant{% endif %}{% if m.tool_calls %} to=functions."
    "{{ m.tool_calls[0].function.name }}<|channel|>commentary json<|message|>"
    "{{ m.tool_calls[0].function.arguments | tojson }}<|call|>{% else %}"
    "<|channel|>final<|message|>{{ m.content }}{{ '<|return|>' if loop.last else '<|end|>' }}"
    "{% endif %}{% endif %}{% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
MARKUP = ["<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>"]
MARKUP += ["<|constrain|>"]
TOOLS = [{"type": "function", "function": {"name": "add", "description": "", "parameters": {}}}]
NEXT = "<|end|><|start|>assistant"
THOUGHT = "<|channel|>analysis<|message|>"
PREAMBLE = "<|channel|>commentary<|message|>"
FINAL = "<|channel|>final<|message|>"
CALL = ' to=functions.add<|channel|>commentary json<|message|>{"a": 1}'
CALL_LATE = '<|channel|>commentary to=functions.add <|constrain|>json<|message|>{"a": 1}'


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens(MARKUP)
    tokenizer.eos_token = "<|return|>"
    return Renderer(tokenizer, chat_template=TEMPLATE)


def read(renderer: Renderer, text: str, stop: str = "") -> tuple[str | None, str, list[Any]]:
    ids = renderer.tokenizer.encode(text + stop, add_special_tokens=False)
    message = renderer.parse(ids, tools=TOOLS)
    calls = [(call.name, call.arguments, call.error) for call in message["tool_calls"]]
    return message.get("reasoning_content"), message["content"], calls


ADD = [("add", {"a": 1}, None)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (FINAL + "Yes.", (None, "Yes.", [])),
        (THOUGHT + "Hm." + NEXT + FINAL + "Yes.", ("Hm.", "Yes.", [])),
        (PREAMBLE + "Wait.", (None, "Wait.", [])),
        (PREAMBLE + "Wait." + NEXT + CALL, (None, "Wait.", ADD)),
        (PREAMBLE + "Wait." + NEXT + CALL_LATE, (None, "Wait.", ADD)),
        (THOUGHT + "Hm." + NEXT + CALL_LATE, ("Hm.", "", ADD)),
        (THOUGHT + "Hm." + NEXT + PREAMBLE + "Wait." + NEXT + CALL, ("Hm.", "Wait.", ADD)),
        (PREAMBLE + "a" + NEXT + THOUGHT + "Hm." + NEXT + FINAL + "b", ("Hm.", "a\nb", [])),
        (THOUGHT + "1" + NEXT + THOUGHT + "2" + NEXT + FINAL + "b", ("1\n2", "b", [])),
        ("<|channel|>final <|constrain|>json<|message|>{}", (None, "{}", [])),
        (THOUGHT + "Hm." + CALL, ("Hm.", "", ADD)),
        (FINAL + "to=functions.add is how", (None, "to=functions.add is how", [])),
        ("Yes.", (None, "Yes.", [])),
        (THOUGHT + "cut", ("cut", "", [])),
        (THOUGHT + "cut<|end|>", ("cut", "", [])),
        (THOUGHT + "cut<|end|><|start|>", ("cut", "", [])),
        (THOUGHT + "cut" + NEXT, ("cut", "", [])),
        (THOUGHT + "cut" + NEXT + "<|channel|>", ("cut", "", [])),
        (THOUGHT + "cut" + NEXT + "<|channel|>fin", ("cut", "", [])),
        ("", (None, "", [])),
    ],
)
def test_each_part_goes_where_its_header_says(
    renderer: Renderer, text: str, expected: tuple[str | None, str, list[Any]]
) -> None:
    for stop in ("", "<|return|>", "<|call|>"):
        assert read(renderer, text, stop) == expected


WORDS = st.text(st.characters(categories=["L", "Zs"]), max_size=12)
PARTS = st.lists(st.tuples(st.sampled_from([THOUGHT, PREAMBLE, FINAL]), WORDS), max_size=5)


@given(PARTS, st.booleans())
def test_no_markup_is_content(
    renderer: Renderer, parts: list[tuple[str, str]], called: bool
) -> None:
    text = NEXT.join([header + words for header, words in parts] + [CALL] * called)
    thought, content, calls = read(renderer, text, "<|call|>" if called else "<|return|>")
    said = [words.strip() for header, words in parts if header != THOUGHT]
    thoughts = [words.strip() for header, words in parts if header == THOUGHT]
    assert content == "\n".join(filter(None, said))
    assert (thought or "") == "\n".join(filter(None, thoughts))
    assert calls == ADD * called


PIECES = st.sampled_from([*MARKUP, "analysis", "assistant", "final", " to=functions.", "a", "{"])


@given(st.lists(PIECES, max_size=16).map("".join))
def test_torn_headers_never_raise(renderer: Renderer, text: str) -> None:
    thought, content, _ = read(renderer, text)
    assert isinstance(content, str) and isinstance(thought, str | None)


def test_long_turns_take_time_in_proportion_to_the_text() -> None:
    channels = Channels(
        joint="<|end|><|start|>assistant",
        start="<|channel|>",
        end="<|message|>",
        thought=THOUGHT,
        call=" to=functions.",
    )
    for text in (NEXT * 20_000, "<|channel|>" * 20_000, "to=functions." * 20_000, " " * 200_000):
        assert all(isinstance(part, str) for part in channels.split(text))
