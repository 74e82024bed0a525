"""A tokenizer's own response template is obeyed, and nothing that a model writes breaks it."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gymnast.agents.loading.tiny import tiny_tokenizer
from gymnast.envs.rendering.renderer import Renderer
from gymnast.envs.rendering.response_template import Parsed, ResponseTemplate
from gymnast.envs.rendering.tokens.safe_text import SafeText
from gymnast.errors import TemplateError

TOKENS = ["<think>", "</think>", "<|start|>", "<|channel|>", "<|message|>", "<|call|>", "<|end|>"]
CHATML = "<|im_start|>assistant\n"
HERMES = {
    "defaults": {"role": "assistant"},
    "start_anchor": CHATML,
    "fields": {
        "reasoning_content": {"open": "<think>", "close_pattern": r"</think>\s*"},
        "tool_calls": {
            "open_pattern": r"\s*<tool_call>",
            "close": "</tool_call>",
            "repeats": True,
            "content": "json",
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {"close_pattern": r"\s*<\|im_end\|>"},
    },
}
XML = {
    "start_anchor": CHATML,
    "fields": {
        "tool_calls": {
            "open_pattern": r"<tool_call>\s*<function=(?P<name>[^>\n]+)>",
            "close_pattern": r"</tool_call>\s*",
            "repeats": True,
            "content": "xml-inline",
            "content_args": {
                "tag_pattern": r"<parameter=(?P<key>[^>]+)>\n?(?P<value>.*?)\n?</parameter>"
            },
            "transform": {"function": {"name": "{name}", "arguments": "{content}"}},
        },
        "content": {"close": "<|im_end|>"},
    },
}
HARMONY = {
    "start_anchor": "<|start|>assistant",
    "fields": {
        "thinking": {"open": "<|channel|>analysis<|message|>", "close": "<|end|>"},
        "content": {"open": "<|channel|>final<|message|>", "close": "<|im_end|>"},
        "tool_calls": {
            "open_pattern": r"to=functions\.(?P<name>\w+)<\|channel\|>commentary json<\|message\|>",
            "close": "<|call|>",
            "repeats": True,
            "content": "json",
            "transform": {"name": "{name}", "arguments": "{content}"},
        },
    },
}
TOOL = {
    "name": "add",
    "parameters": {
        "type": "object",
        "properties": {
            "a": {"type": "integer"},
            "b": {"type": "number"},
            "sure": {"type": "boolean"},
            "tags": {"type": "array", "items": {"type": "string"}},
            "note": {"type": "string"},
        },
    },
}
TOOLS = [{"type": "function", "function": TOOL}]


class Reader:
    """A response template on the tiny tokenizer; text stands for its token ids."""

    def __init__(self, template: dict[str, Any], prompt: str) -> None:
        self.tokenizer = tiny_tokenizer()
        self.tokenizer.add_tokens(TOKENS)
        self.tokenizer.response_template = template
        self.prompt = prompt
        found = ResponseTemplate.of(self.tokenizer, SafeText(self.tokenizer), prompt)
        assert found is not None
        self.template = found
        self.stop_ids = self.ids("<|im_end|><|call|>")

    def ids(self, text: str) -> list[int]:
        return list(self.tokenizer.encode(text, add_special_tokens=False))

    def __call__(
        self, text: str, context: str | None = None, tools: Sequence[Any] | None = TOOLS
    ) -> Parsed:
        context_ids = self.ids(self.prompt if context is None else context)
        return self.template.read(self.ids(text), context_ids, tools, self.stop_ids)


@pytest.fixture(scope="module")
def hermes() -> Reader:
    return Reader(HERMES, CHATML)


@pytest.fixture(scope="module")
def xml() -> Reader:
    return Reader(XML, CHATML)


@pytest.fixture(scope="module")
def harmony() -> Reader:
    return Reader(HARMONY, "<|start|>assistant")


def hermes_call(arguments: Any, name: str = "add") -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def read_well(parsed: Parsed) -> list[tuple[str, dict[str, Any]]]:
    assert [call.error for call in parsed.calls] == [None] * len(parsed.calls)
    return [(call.name, call.arguments) for call in parsed.calls]


def test_reasoning_content_and_calls_are_separated(hermes: Reader) -> None:
    first, second = hermes_call({"a": 1}), hermes_call({"a": 2})
    parsed = hermes(f"<think>\nHm.\n</think>\n\nLet me add.\n{first}\n{second}<|im_end|>")
    assert (parsed.reasoning, parsed.content) == ("Hm.", "Let me add.")
    assert read_well(parsed) == [("add", {"a": 1}), ("add", {"a": 2})]


def test_text_after_a_call_does_not_replace_text_before_it(hermes: Reader) -> None:
    parsed = hermes(f"Before. {hermes_call({})} After.<|im_end|>")
    assert parsed.content == "Before.\nAfter."


@pytest.mark.parametrize("text", ["5", "", "A <b>tag</b> and a { brace."])
def test_text_alone_is_content(hermes: Reader, harmony: Reader, text: str) -> None:
    for reader in (hermes, harmony):
        assert reader(f"{text}<|im_end|>") == Parsed(text, "", [])


def test_a_stop_token_that_no_region_expects_is_not_content(hermes: Reader) -> None:
    assert hermes("Five.<|call|>").content == "Five."
    assert hermes(f"Look. {hermes_call({})}<|call|>").content == "Look."


def test_the_context_may_have_opened_a_region(hermes: Reader) -> None:
    parsed = hermes("Hm.</think>Five.<|im_end|>", context=f"{CHATML}<think>\n")
    assert (parsed.reasoning, parsed.content) == ("Hm.", "Five.")


def test_calls_of_earlier_turns_are_not_read_again(hermes: Reader) -> None:
    earlier = f"{CHATML}{hermes_call({})}<|im_end|>\n<|im_start|>user\n5<|im_end|>\n{CHATML}"
    assert hermes("Five.<|im_end|>", context=earlier) == Parsed("Five.", "", [])


def test_a_turn_far_behind_its_start_is_still_found(hermes: Reader) -> None:
    parsed = hermes("</think>Five.<|im_end|>", context=f"{CHATML}<think>{'so ' * 500}")
    assert (parsed.reasoning, parsed.content) == (("so " * 500).strip(), "Five.")


def test_without_a_context_the_prompt_stands_for_it() -> None:
    reader = Reader(HERMES, f"{CHATML}<think>\n")
    parsed = reader.template.read(reader.ids("Hm.</think>Five.<|im_end|>"), (), TOOLS)
    assert (parsed.reasoning, parsed.content) == ("Hm.", "Five.")


def test_text_parameters_take_the_types_of_the_schema(xml: Reader) -> None:
    written = {"a": "3", "b": "2.5", "sure": "true", "tags": '["x"]', "note": "3"}
    body = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in written.items())
    parsed = xml(f"<tool_call>\n<function=add>\n{body}</function>\n</tool_call><|im_end|>")
    typed = {"a": 3, "b": 2.5, "sure": True, "tags": ["x"], "note": "3"}
    assert read_well(parsed) == [("add", typed)]


def test_without_schemas_text_parameters_stay_text(xml: Reader) -> None:
    text = "<tool_call><function=add><parameter=a>3</parameter></function></tool_call>"
    assert read_well(xml(text, tools=None)) == [("add", {"a": "3"})]


def test_a_name_may_stand_in_the_markup(harmony: Reader) -> None:
    thought = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
    call = ' to=functions.add<|channel|>commentary json<|message|>{"a": 3}<|call|>'
    parsed = harmony(thought + call)
    assert (parsed.reasoning, parsed.content) == ("Hm.", "")
    assert read_well(parsed) == [("add", {"a": 3})]


@pytest.mark.parametrize(
    "written",
    [
        {"name": "add", "arguments": {"a": 3}},
        {"name": "add", "parameters": {"a": 3}},
        {"name": "add", "arguments": '{"a": 3}'},
        {"function": {"name": "add", "arguments": {"a": 3}}},
        {"type": "function", "function": {"name": "add", "arguments": '{"a": 3}'}},
        [{"name": "add", "arguments": {"a": 3}}],
    ],
)
def test_calls_come_in_many_shapes(written: Any) -> None:
    fields = {
        "tool_calls": {"open": "<tool_call>", "close": "</tool_call>", "content": "json"},
        "content": {"close": "<|im_end|>"},
    }
    reader = Reader({"start_anchor": CHATML, "fields": fields}, CHATML)
    parsed = reader(f"<tool_call>{json.dumps(written)}</tool_call><|im_end|>")
    assert read_well(parsed) == [("add", {"a": 3})]


def test_a_call_may_leave_its_arguments_out_and_bring_its_id(hermes: Reader) -> None:
    parsed = hermes('<tool_call>{"name": "ping", "id": "call_7"}</tool_call><|im_end|>')
    assert read_well(parsed) == [("ping", {})]
    assert parsed.calls[0].id == "call_7"


@pytest.mark.parametrize(
    ("written", "position", "rule"),
    [
        ('<tool_call>{"name": "add" "arguments": {}}</tool_call>', 31, "Expecting ',' delimiter"),
        ("<tool_call>add(3, 4)</tool_call>", 16, "Expecting value"),
        ("<tool_call></tool_call>", 16, "Expecting value"),
        ('<tool_call>{"name": "add", "argum', 32, "the turn ends inside the call"),
        ('<tool_call>{"name": "add", "arguments": {}}', 16, "the turn ends inside the call"),
        ("<tool_call>", 16, "the turn ends inside the call"),
        ('<tool_call>{"arguments": {}}</tool_call>', 16, "must have its tool's name"),
        ('<tool_call>{"name": 3, "arguments": {}}</tool_call>', 16, "must have its tool's name"),
        ('<tool_call>{"name": "add", "arguments": [1]}</tool_call>', 16, "object, not list"),
        ('<tool_call>{"name": "add", "arguments": "x"}</tool_call>', 16, "are a string"),
        ('<tool_call>{"name": "add", "arguments": {"a": NaN}}</tool_call>', 16, "NaN"),
        ("<tool_call>" + "[" * 9999 + "</tool_call>", 16, "nested too deeply"),
        (
            '<tool_call>{"name": "a", "arguments": {"a": ' + "9" * 5000 + "}}</tool_call>",
            16,
            "4300",
        ),
    ],
)
def test_a_malformed_call_says_where_and_why(
    hermes: Reader, written: str, position: int, rule: str
) -> None:
    parsed = hermes(f"So: {written}")
    (call,) = parsed.calls
    assert call.error is not None
    assert rule in call.error
    assert call.error.startswith("call 1 could not be read at character ")
    assert abs(int(call.error.split("character ")[1].split(":")[0]) - position) <= 1
    assert (call.arguments, parsed.content) == ({}, "So:")


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        ('{"a": 1, "a": 2}', "the argument 'a' is given twice"),
        ('{"a": 1, "\\u0061": 2}', "the argument 'a' is given twice"),
        ('{"tags": {"k": 1, "k": 2}}', "the element 'k' is given twice"),
    ],
)
def test_an_argument_given_twice_in_json_is_malformed(
    hermes: Reader, harmony: Reader, arguments: str, rule: str
) -> None:
    opening = "to=functions.add<|channel|>commentary json<|message|>"
    for parsed in (
        hermes(f'<tool_call>{{"name": "add", "arguments": {arguments}}}</tool_call><|im_end|>'),
        harmony(f"{opening}{arguments}<|call|>"),
    ):
        (call,) = parsed.calls
        assert (call.name, call.arguments) == ("add", {})
        assert str(call.error).endswith(rule)


def test_a_key_of_a_call_given_twice_is_malformed(hermes: Reader) -> None:
    broken = '<tool_call>{"name": "add", "name": "add", "arguments": {}}</tool_call>'
    bad, good = hermes(f"{broken}{hermes_call({'a': 1})}<|im_end|>").calls
    assert "the key 'name' is given twice" in str(bad.error)
    assert (good.arguments, good.error) == ({"a": 1}, None)


def test_a_parameter_given_twice_is_malformed(xml: Reader) -> None:
    body = "<parameter=a>3</parameter>\n<parameter=a>4</parameter>\n"
    (call,) = xml(f"<tool_call>\n<function=add>\n{body}</function>\n</tool_call>").calls
    assert (call.name, call.arguments) == ("add", {})
    assert "the argument 'a' is given twice" in str(call.error)


def test_an_argument_given_twice_in_a_dialect_of_json_is_malformed() -> None:
    """With strings in markup and keys without quotes."""
    field = {
        "open_pattern": r"call:(?P<name>\w+)",
        "close": "<|call|>",
        "repeats": True,
        "content": "json",
        "content_args": {"string_delims": [["<|", "|>"]], "unquoted_keys": True},
        "transform": {"name": "{name}", "arguments": "{content}"},
    }
    content = {"close": "<|im_end|>"}
    template = {"start_anchor": CHATML, "fields": {"tool_calls": field, "content": content}}
    reader = Reader(template, CHATML)
    assert read_well(reader("call:add{note:<|{a:1,a:2}|>,a:2}<|call|>")) == [
        ("add", {"note": "{a:1,a:2}", "a": 2})
    ]
    (call,) = reader("call:add{a:1,note:<|x|>,a:2}<|call|>").calls
    assert "the argument 'a' is given twice" in str(call.error)


def test_parameters_that_are_torn_are_no_call_without_them(xml: Reader) -> None:
    (call,) = xml("<tool_call>\n<function=add>\n<parameter=a>\n3").calls
    assert call.error is not None
    assert "the turn ends inside the call" in call.error


def test_what_is_around_a_malformed_call_is_read(hermes: Reader) -> None:
    good = hermes_call({"a": 1})
    parsed = hermes(f"<think>Hm.</think>One.{good}Two.<tool_call>{{</tool_call>Three.{good}Four.")
    assert [call.error is None for call in parsed.calls] == [True, False, True]
    assert (parsed.reasoning, parsed.content) == ("Hm.", "One.\nTwo.\nThree.\nFour.")


def test_a_required_field_that_is_missing_is_no_error() -> None:
    fields = {"content": {"open": "<|message|>", "close": "<|end|>", "optional": False}}
    reader = Reader({"start_anchor": CHATML, "fields": fields}, CHATML)
    assert reader("Hm.<|im_end|>") == Parsed("Hm.", "", [])


def test_a_tokenizer_without_a_response_template_has_none() -> None:
    tokenizer = tiny_tokenizer()
    assert ResponseTemplate.of(tokenizer, SafeText(tokenizer), CHATML) is None


def field(**changed: Any) -> dict[str, Any]:
    calls = {"open": "<tool_call>", "close": "</tool_call>", "content": "json", **changed}
    return {"start_anchor": CHATML, "fields": {"tool_calls": calls}}


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ({**HERMES, "version": 7}, "version"),
        ("<tool_call>", "must be a dict"),
        ({"fields": HERMES["fields"]}, "start_anchor"),
        (field(open_pattern="(", open=None), "both"),
        ({"start_anchor": CHATML, "fields": {"tool_calls": {"open_pattern": "("}}}, "regex"),
        (field(content="yaml"), "yaml"),
        (field(content="xml-inline"), "'key' and 'value'"),
        (field(content="xml-inline", content_args={"tag_pattern": "(?P<key>(?P<value>"}), "miss"),
        (field(content="kv-lines", content_args={"value_parser": {"name": "yaml"}}), "yaml"),
        (field(content_args={"string_delims": ["'"]}), "unpack"),
        ({**HERMES, "start_anchor": "<|assistant|>"}, "but its chat template writes"),
    ],
)
def test_a_broken_response_template_is_refused(template: Any, reason: str) -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.response_template = template
    with pytest.raises(TemplateError, match=reason) as raised:
        ResponseTemplate.of(tokenizer, SafeText(tokenizer), CHATML)
    assert "response_template = None" in str(raised.value)


def test_arrays_of_ids_are_taken_too() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.response_template = HERMES
    renderer = Renderer(tokenizer)
    context = np.array(renderer.prompt([{"role": "user", "content": "3?"}], TOOLS))
    ids = np.array(tokenizer.encode(f"{hermes_call({'a': 3})}<|im_end|>"))
    message = renderer.parse(ids, context_ids=context, tools=TOOLS)  # type: ignore[arg-type]
    assert [call.name for call in message["tool_calls"]] == ["add"]


PIECES = [
    *("<tool_call>", "</tool_call>", "<think>", "</think>", "<|im_end|>", "<|channel|>", "\n"),
    *("<|message|>", "<|call|>", "to=functions.add", "commentary json", "analysis", "final"),
    *("<function=add>", "</function>", "<parameter=a>", "</parameter>", '{"name": "add"', "3", "é"),
    *(', "arguments": ', '{"a": 1}', "}", "]", "[", '"', "\\", "null", "NaN", "1e999", "\x00"),
    '{"name": "add", "arguments": {"a": 1}}',
]
completions = st.lists(st.sampled_from(PIECES) | st.text(max_size=8), max_size=24).map("".join)


@settings(max_examples=300, deadline=None)
@given(text=completions)
def test_nothing_a_model_writes_raises(
    hermes: Reader, xml: Reader, harmony: Reader, text: str
) -> None:
    for reader in (hermes, xml, harmony):
        parsed = reader(text)
        assert isinstance(parsed.content, str)
        for call in parsed.calls:
            assert call.error is not None or call.name
            json.dumps(call.arguments, allow_nan=False)


@settings(max_examples=100, deadline=None)
@given(
    arguments=st.dictionaries(st.text(max_size=4), st.text(max_size=8) | st.booleans(), max_size=3),
    cut=st.integers(min_value=0, max_value=200),
)
def test_a_call_is_whole_or_an_error(hermes: Reader, arguments: dict[str, Any], cut: int) -> None:
    whole = f"Hm. {hermes_call(arguments)}"
    torn = whole[:cut]
    for call in hermes(torn, tools=None).calls:
        assert (call.arguments == arguments) if torn == whole else call.error
    assert hermes(torn).content.startswith("Hm."[:cut].strip())
