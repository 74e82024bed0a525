"""Thoughts: how a template writes them, and what of a completion is one."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymnast.agents.loading.tiny import tiny_tokenizer
from gymnast.envs.rendering.renderer import Renderer
from gymnast.envs.rendering.template.reasoning import Reasoning
from gymnast.types import Message

HEAD = "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
BODY = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.reasoning_content %}<think>\n"
    "{{ m.reasoning_content }}\n</think>\n\n{% endif %}{{ m.content or '' }}"
    "{% for call in m.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>"
    "{% endfor %}<|im_end|>\n{% endfor %}"
)
PROMPT = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
THINKING = PROMPT.replace("assistant\n", "assistant\n<think>\n")
OPTIONAL = PROMPT.replace("{% endif %}", "{% if think %}<think>\n{% endif %}{% endif %}")
CHANNELS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}{% if m.thinking %}"
    "<|channel|>analysis<|message|>{{ m.thinking }}<|end|><|im_start|>assistant{% endif %}"
    "{% if m.role == 'assistant' %}<|channel|>final{% endif %}<|message|>{{ m.content }}<|im_end|>"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant{% endif %}"
)
TOOLS = [{"type": "function", "function": {"name": "add", "description": "", "parameters": {}}}]
CALL = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
QUESTION = {"role": "user", "content": "3?"}


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens(["<think>", "</think>", "<|channel|>", "<|message|>", "<|end|>"])
    return tokenizer


@pytest.fixture(scope="module")
def free(tokenizer: Any) -> Renderer:
    """The model opens its thoughts."""
    return Renderer(tokenizer, chat_template=HEAD + BODY + PROMPT)


@pytest.fixture(scope="module")
def thinking(tokenizer: Any) -> Renderer:
    """The generation prompt opens them."""
    return Renderer(tokenizer, chat_template=HEAD + BODY + THINKING)


def read(renderer: Renderer, text: str, **given: Any) -> tuple[str | None, str, int]:
    ids = renderer.tokenizer.encode(text + "<|im_end|>", add_special_tokens=False)
    message: Message = renderer.parse(ids, tools=TOOLS, **given)
    return message.get("reasoning_content"), message["content"], len(message["tool_calls"])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Seven.", (None, "Seven.", 0)),
        ("<think>\nHm.\n</think>\n\nSeven.", ("Hm.", "Seven.", 0)),
        ("\n<think>Hm.</think>Seven.", ("Hm.", "Seven.", 0)),
        ("<think>\nHm.\n</think>\n\n" + CALL, ("Hm.", "", 1)),
        ("<think>\nHm.\n</think>\n\nLook:" + CALL, ("Hm.", "Look:", 1)),
        ("<think>\n\n</think>\n\nSeven.", (None, "Seven.", 0)),
        ("<think>Hm.", ("Hm.", "", 0)),
        ("<think>Hm." + CALL, ("Hm.", "", 1)),
        ("<think>Or " + CALL + "?</think>Seven.", ("Or " + CALL + "?", "Seven.", 0)),
        ("Hm.</think>Seven.", ("Hm.", "Seven.", 0)),
        ("<think>a</think>b<think>c</think>d", ("a", "b<think>c</think>d", 0)),
        ("Seven <think>", (None, "Seven <think>", 0)),
        ("<think>", (None, "", 0)),
        ("", (None, "", 0)),
    ],
)
def test_a_thought_that_the_model_opens(
    free: Renderer, text: str, expected: tuple[str | None, str, int]
) -> None:
    assert read(free, text) == expected
    assert read(free, text, context_ids=free.prompt([QUESTION], TOOLS)) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Hm.\n</think>\n\nSeven.", ("Hm.", "Seven.", 0)),
        ("Hm.</think>" + CALL, ("Hm.", "", 1)),
        ("</think>Seven.", (None, "Seven.", 0)),
        ("Hm.", ("Hm.", "", 0)),
        ("Hm." + CALL, ("Hm.", "", 1)),
        ("<think>Hm.</think>Seven.", ("Hm.", "Seven.", 0)),
    ],
)
def test_a_thought_that_the_prompt_opens(
    thinking: Renderer, text: str, expected: tuple[str | None, str, int]
) -> None:
    assert read(thinking, text) == expected
    assert read(thinking, text, context_ids=thinking.prompt([QUESTION], TOOLS)) == expected


def test_the_context_says_whether_a_thought_is_open(tokenizer: Any) -> None:
    source = HEAD + BODY + OPTIONAL
    for think, expected in ((True, ("Hm.", "", 0)), (False, (None, "Hm.", 0))):
        renderer = Renderer(tokenizer, chat_template=source, chat_template_kwargs={"think": think})
        assert read(renderer, "Hm.", context_ids=renderer.prompt([QUESTION])) == expected


def test_thoughts_may_be_turns_of_their_own(tokenizer: Any) -> None:
    renderer = Renderer(tokenizer, chat_template=CHANNELS)
    thought = "<|channel|>analysis<|message|>Hm.<|end|><|im_start|>assistant"
    answer = "<|channel|>final<|message|>Seven."
    assert read(renderer, thought + answer) == ("Hm.", "Seven.", 0)
    assert read(renderer, answer) == (None, "Seven.", 0)
    assert read(renderer, "<|channel|>analysis<|message|>Hm.") == ("Hm.", "", 0)
    talk = [QUESTION, {"role": "assistant", "content": "Seven.", "reasoning_content": "Hm."}]
    written = tokenizer.decode(renderer.prompt(talk))
    assert thought + answer in written


# What DeepSeek R1's templates do: no thought is ever written, and one in an answer is taken out.
TAKING_OUT = BODY.replace("m.reasoning_content", "m.nothing").replace(
    "{{ m.content or '' }}", "{{ (m.content or '').split('</think>')[-1] }}"
)


@pytest.mark.parametrize(
    ("body", "prompt"),
    [
        (TAKING_OUT, THINKING),
        (TAKING_OUT, PROMPT),
        (BODY.replace("m.reasoning_content", "m.nothing"), THINKING),
    ],
)
def test_thoughts_are_split_off_where_a_template_writes_none(
    tokenizer: Any, body: str, prompt: str
) -> None:
    renderer = Renderer(tokenizer, chat_template=HEAD + body + prompt)
    context = renderer.prompt([QUESTION], TOOLS)
    opened = prompt is THINKING
    for text, expected in (
        ("Hm.\n</think>\n\nSeven.", ("Hm.", "Seven.", 0)),
        ("Hm.</think>" + CALL, ("Hm.", "", 1)),
        ("<think>Hm.</think>Seven.", ("Hm.", "Seven.", 0)),
        ("Hm.", ("Hm.", "", 0) if opened else (None, "Hm.", 0)),
    ):
        assert read(renderer, text, context_ids=context) == expected


def test_a_template_without_thoughts_has_only_content(tokenizer: Any) -> None:
    plain = BODY.replace("m.reasoning_content", "m.nothing")
    renderer = Renderer(tokenizer, chat_template=HEAD + plain + PROMPT)
    text = "<think>Hm.</think>Seven."
    assert read(renderer, text) == (None, text, 0)


TEXT = st.text(st.characters(exclude_characters="<>", exclude_categories=["Cs"]), max_size=20)


@given(TEXT, TEXT, st.booleans(), st.booleans())
def test_thought_and_answer_are_kept_apart(
    free: Renderer, thought: str, answer: str, closed: bool, called: bool
) -> None:
    text = f"<think>{thought}{'</think>' * closed}{answer * closed}{CALL * called}"
    said = (answer.strip() if called else answer.lstrip()) if closed else ""
    assert read(free, text) == (thought.strip() or None, said, int(called))


PIECES = st.sampled_from(
    ["<think>", "</think>", "\n", "Hm", CALL, "<tool_call>", "<|im_end|>", "{"]
)


@given(st.lists(PIECES, max_size=12).map("".join))
def test_torn_thoughts_never_raise(free: Renderer, thinking: Renderer, text: str) -> None:
    for renderer in (free, thinking):
        reasoning, content, _ = read(renderer, text)
        assert reasoning is None or reasoning in text
        assert all(line in text for line in content.split("\n"))


def test_thousands_of_thoughts_take_time_in_proportion_to_the_text() -> None:
    reasoning = Reasoning("reasoning_content", "<think>", "</think>", prewritten=False)
    for text in ("<think>" * 50_000, "<think>x</think>" * 20_000, " " * 400_000 + "</think>"):
        thought, rest = reasoning.split(text, prewritten=False, until=("<tool_call>",), alone=True)
        assert len(thought) + len(rest) <= len(text)
