"""`Renderer.encode`: the action that an agent would have sampled to say a message."""

import copy
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gymnast.agents.loading.tiny import tiny_tokenizer
from gymnast.envs.rendering.renderer import Renderer
from gymnast.errors import DataError, TemplateError, UsageError
from gymnast.types import ToolCall

FOLDER = Path(__file__).parent / "chat_templates"
MARKUP = [
    *(f"<|{name}|>" for name in ("eot_id", "start_header_id", "end_header_id", "turn", "end")),
    *(f"<|{end}{name}|>" for name in ("thought", "action", "calls", "call") for end in ("", "/")),
    *(
        f"[{end}{name}]"
        for name in ("INST", "AVAILABLE_TOOLS", "TOOL_RESULTS")
        for end in ("", "/")
    ),
    *("[TOOL_CALLS]", "<|args|>", "<think>", "</think>"),
]
NAMES = ["hermes", "listed", "bare", "action", "invented", "sectioned", "named", "xml"]
NAMES += ["without_tools", "alternating"]
BESIDE = {"hermes", "invented", "named", "sectioned", "without_tools", "alternating"}
PROMPT = "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n{% endif %}"
TURNS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}"
    "{{ (m.content or '').split('</think>')[-1] }}{% else %}{{ m.content }}{% endif %}"
    "<|im_end|>\n{% endfor %}"
)
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": "",
            "parameters": {
                "type": "object",
                "properties": {"a": {"type": "integer"}, "text": {"type": "string"}},
            },
        },
    }
    for name in ("add", "multiply")
]
QUESTION = {"role": "user", "content": "What is 3 plus 4?"}
NEXT = {"role": "user", "content": "Thanks."}


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens(MARKUP)
    return tokenizer


@pytest.fixture(scope="module")
def renderers(tokenizer: Any) -> dict[str, Renderer]:
    made = {}
    for name in NAMES:
        own = copy.deepcopy(tokenizer)
        if name in ("listed", "bare"):
            own.eos_token = "<|endoftext|>"
        template = None if name == "hermes" else (FOLDER / f"{name}.jinja").read_text()
        made[name] = Renderer(own, chat_template=template)
    return made


@pytest.fixture(scope="module")
def thinking(tokenizer: Any) -> Renderer:
    """Its prompt opens a thought, and its history has none: as DeepSeek R1's template."""
    return Renderer(tokenizer, chat_template=TURNS + PROMPT)


def say(content: str = "", *calls: ToolCall, thought: str = "") -> dict[str, Any]:
    message = {"role": "assistant", "content": content, "tool_calls": list(calls)}
    return message | {"reasoning_content": thought} if thought else message


def add(number: int, **arguments: Any) -> ToolCall:
    return ToolCall(f"callid00{number}", ("add", "multiply")[number % 2], arguments)


def answers(message: dict[str, Any]) -> list[dict[str, Any]]:
    """Results of a message's calls, or a user's next word."""
    results = [
        {"role": "tool", "content": "7", "tool_call_id": call.id, "name": call.name}
        for call in message["tool_calls"]
    ]
    return results or [NEXT]


TEXTS = st.text(
    st.characters(exclude_categories=("Cs", "Cc", "Cn"), include_characters="\n\t")
    | st.sampled_from("\"'\\{}[]()<>:,=|& \n"),
    max_size=16,
).filter(lambda text: not re.search(r"<[^<>]+>", text))  # markup of its own, which is refused
CALLS = st.lists(
    st.fixed_dictionaries({}, optional={"a": st.integers(-99, 99), "text": TEXTS}), max_size=2
).map(lambda drawn: [add(number, **arguments) for number, arguments in enumerate(drawn)])


@given(content=TEXTS, calls=CALLS)
@settings(max_examples=40, deadline=None)
def test_a_message_is_read_back_and_stands_as_the_template_writes_it(
    renderers: dict[str, Renderer], content: str, calls: list[ToolCall]
) -> None:
    for name, renderer in renderers.items():
        said = content if name in BESIDE or not calls else ""
        message = say(said, *(calls[:1] if name == "bare" else calls))
        action = renderer.encode(message, tools=TOOLS)
        assert action[-1] in renderer.stop_ids
        assert not set(action[:-1]) & set(renderer.stop_ids)
        context = renderer.prompt([QUESTION], TOOLS)
        read = renderer.parse(action, context_ids=context, tools=TOOLS)
        assert read["content"].strip() == said.strip()
        assert [(call.name, call.arguments, call.error) for call in read["tool_calls"]] == [
            (call.name, call.arguments, None) for call in message["tool_calls"]
        ]
        after = answers(message)
        observed = renderer.observe([*context, *action], after, tools=TOOLS)
        whole = renderer.prompt([QUESTION, message, *after], TOOLS)
        assert renderer.tokenizer.decode([*context, *action, *observed]) == (
            renderer.tokenizer.decode(whole)
        ), name


@given(words=st.lists(st.sampled_from([*MARKUP, "<|im_end|>", "</s>", " a "]), max_size=4))
@settings(max_examples=40, deadline=None)
def test_no_token_of_markup_comes_from_content(
    renderers: dict[str, Renderer], words: list[str]
) -> None:
    for name, renderer in renderers.items():
        added = set(renderer.tokenizer.get_added_vocab().values())

        def tokens(text: str, renderer: Renderer = renderer, added: set[int] = added) -> Any:
            return Counter(n for n in renderer.encode(say(text), tools=TOOLS) if n in added)

        try:
            hostile = tokens("say " + "".join(words))
        except TemplateError as error:  # what spells a call would be read as one
            assert "would be read as" in str(error)
            continue
        assert hostile == tokens("say so"), name


def test_a_spelled_token_of_a_call_is_text_in_its_arguments(
    renderers: dict[str, Renderer],
) -> None:
    for name in ("hermes", "listed", "named"):
        renderer = renderers[name]
        message = say("", add(0, text="a <|call|> [TOOL_CALLS] </tool_call> <|im_end|>"))
        read = renderer.parse(renderer.encode(message, tools=TOOLS), tools=TOOLS)
        (call,) = read["tool_calls"]
        assert call.arguments == message["tool_calls"][0].arguments


def test_the_stop_token_is_the_one_that_a_model_samples(renderers: dict[str, Renderer]) -> None:
    def last(name: str, message: dict[str, Any]) -> str:
        renderer = renderers[name]
        return str(renderer.tokenizer.decode(renderer.encode(message, tools=TOOLS)[-1:]))

    assert last("hermes", say("Hi.")) == "<|im_end|>"
    assert last("bare", say("Hi.")) == last("bare", say("", add(0))) == "<|eot_id|>"
    assert last("listed", say("Hi.")) == "<|endoftext|>"


def test_a_thought_is_closed_where_the_prompt_opens_one(thinking: Renderer) -> None:
    context = thinking.prompt([QUESTION])
    for thought in ("", "Hm.\nSo."):
        action = thinking.encode(say("Seven.", thought=thought))
        read = thinking.parse(action, context_ids=context)
        assert read["content"] == "Seven."
        assert read.get("reasoning_content", "") == thought
        text = thinking.tokenizer.decode([*context, *action])
        assert text.endswith(f"<think>\n{thought}\n</think>\n\nSeven.<|im_end|>")


def test_openai_calls_and_arguments_as_text_will_do(renderers: dict[str, Renderer]) -> None:
    renderer = renderers["hermes"]
    function = {"name": "add", "arguments": '{"a": 3}'}
    message = {"role": "assistant", "tool_calls": [{"type": "function", "function": function}]}
    read = renderer.parse(renderer.encode(message, tools=TOOLS), tools=TOOLS)
    assert [(call.name, call.arguments) for call in read["tool_calls"]] == [("add", {"a": 3})]


def test_a_call_without_an_id_gets_one_that_the_template_takes(
    renderers: dict[str, Renderer],
) -> None:
    renderer = renderers["listed"]
    for call_id in ("", "a", "functions.add:0"):
        message = say("", ToolCall(call_id, "add", {"a": 3}))
        (call,) = renderer.parse(renderer.encode(message, tools=TOOLS), tools=TOOLS)["tool_calls"]
        assert (call.name, call.arguments, len(call.id)) == ("add", {"a": 3}, 9)


@pytest.mark.parametrize(
    ("name", "message", "words"),
    [
        ("hermes", QUESTION, "role 'user' cannot be an action"),
        ("hermes", say("", ToolCall("", "add", {}, "torn")), "has an error"),
        ("hermes", say("Hi.", thought="Hm."), "the template writes none here"),
        ("hermes", say("<tool_call>"), "without the template's markup"),
        ("bare", say("Look.", add(0)), "in a message of its own"),
        ("bare", say("", add(0), add(1)), "Give each call a message of its own"),
        ("hermes", say("", ToolCall("", "", {})), "the tool's name"),
    ],
)
def test_what_cannot_be_said_is_refused_with_a_way_out(
    renderers: dict[str, Renderer], name: str, message: dict[str, Any], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        renderers[name].encode(message, tools=TOOLS)


def test_types_that_the_template_does_not_write_need_the_tools_schemas(
    renderers: dict[str, Renderer],
) -> None:
    message = say("", add(0, text="5"))
    renderers["xml"].encode(message, tools=TOOLS)
    with pytest.raises(TemplateError, match="tools="):
        renderers["xml"].encode(message)


def test_what_is_no_message_is_refused(renderers: dict[str, Renderer]) -> None:
    with pytest.raises(DataError, match="role"):
        renderers["hermes"].encode({"content": "Hi."})
