"""A new way to write calls is one class and one line in the table of kinds: here, calls in TOML."""

import tomllib
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from gymnast.agents.loading.tiny import tiny_tokenizer
from gymnast.envs import Renderer
from gymnast.envs.rendering.calls import kinds, markup, probes
from gymnast.envs.rendering.calls.payloads import (
    Malformed,
    MarkedCall,
    Payload,
    PayloadMatch,
    Schemas,
)
from gymnast.errors import TemplateError
from gymnast.types import ToolCall

TEMPLATE = """\
{%- if tools %}<|im_start|>system
{{ tools | tojson }}<|im_end|>
{% endif %}
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content or '' }}
{%- for call in message.tool_calls or [] %}
<tool_call>
name = {{ call.function.name | tojson }}
[arguments]
{% for key, value in call.function.arguments | items %}{{ key }} = {{ value | tojson }}
{% endfor %}</tool_call>
{%- endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


@dataclass(frozen=True)
class TomlCalls(Payload):
    """A TOML document with a name and a table of arguments."""

    label: ClassVar[str] = "a TOML document"

    @classmethod
    def recognise(cls, call: MarkedCall) -> PayloadMatch | None:
        """Find the marked name as TOML, and the last marked argument after it."""
        start = call.text.find(f'name = "{probes.NAMES[0]}"')
        last = str(list(probes.ARGUMENTS[0].values())[-1])
        end = call.text.find(last, max(start, 0)) + len(last)
        return PayloadMatch(cls(), start, end) if 0 <= start < end else None

    def read(
        self, text: str, start: int, schemas: Schemas, close: str
    ) -> tuple[list[ToolCall], int]:
        """Read the document up to the closing markup."""
        closing = markup.pattern(close).search(text, start)
        end = closing.start() if closing else len(text)
        try:
            document = tomllib.loads(text[start:end])
        except tomllib.TOMLDecodeError as error:
            raise Malformed(start, f"not TOML: {error}") from error
        return [ToolCall("", document.get("name", ""), document.get("arguments", {}))], end


QUESTION = {"role": "user", "content": "What is 2 + 3?"}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": "Add.",
            "parameters": {"type": "object", "properties": {"a": {}, "b": {}}},
        },
    }
]
WRITTEN = '<tool_call>\nname = "add"\n[arguments]\na = 2\nb = ["x", 1.5]\n</tool_call>'


@pytest.fixture
def toml_renderer(monkeypatch: pytest.MonkeyPatch) -> Renderer:
    monkeypatch.setattr(kinds, "KINDS", (*kinds.KINDS, TomlCalls))
    return Renderer(tiny_tokenizer(), chat_template=TEMPLATE)


def message(count: int) -> dict[str, Any]:
    calls = [
        {
            "id": f"call0000{number}",
            "type": "function",
            "function": {"name": "add", "arguments": {"a": 2 + number, "b": ["x", 1.5]}},
        }
        for number in range(count)
    ]
    return {"role": "assistant", "content": "Adding.", "tool_calls": calls}


def test_a_template_whose_calls_no_kind_recognises_is_refused() -> None:
    with pytest.raises(TemplateError, match=r"no known kind of call \(.*a JSON object.*\)") as info:
        Renderer(tiny_tokenizer(), chat_template=TEMPLATE)
    assert "TOML" not in str(info.value)


@pytest.mark.parametrize("count", [1, 2])
def test_calls_of_a_new_kind_are_written_and_read_back(toml_renderer: Renderer, count: int) -> None:
    ids = toml_renderer.encode(message(count), tools=TOOLS)
    if count == 1:
        assert toml_renderer.tokenizer.decode(ids) == f"Adding.{WRITTEN}<|im_end|>"
    read = toml_renderer.parse(ids, tools=TOOLS)
    assert read["content"] == "Adding."
    assert [(call.name, call.arguments, call.error) for call in read["tool_calls"]] == [
        ("add", {"a": 2 + number, "b": ["x", 1.5]}, None) for number in range(count)
    ]


def test_results_follow_a_call_of_a_new_kind(toml_renderer: Renderer) -> None:
    context = toml_renderer.prompt([QUESTION], TOOLS)
    context += toml_renderer.encode(message(1), tools=TOOLS)
    result = {"role": "tool", "content": "5", "tool_call_id": "call00000", "name": "add"}
    observed = toml_renderer.observe(context, [result], tools=TOOLS)
    assert toml_renderer.tokenizer.decode(observed) == (
        "\n<|im_start|>tool\n5<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (WRITTEN.replace("[arg", "[["), "not TOML"),
        (WRITTEN.removesuffix("</tool_call>"), "expected '</tool_call>' after the call"),
        (WRITTEN.removeprefix("<tool_call>\n"), "'</tool_call>' belongs to a call"),
    ],
)
def test_a_broken_call_of_a_new_kind_is_answered_with_a_right_one(
    toml_renderer: Renderer, text: str, error: str
) -> None:
    (call,) = toml_renderer.parse(toml_renderer.tokenizer.encode(text), tools=TOOLS)["tool_calls"]
    assert call.error is not None and error in call.error
    example = '<tool_call>\nname = "TOOL"\n[arguments]\nKEY = "VALUE"\n</tool_call>'
    assert call.error.endswith(f"write {example}")
