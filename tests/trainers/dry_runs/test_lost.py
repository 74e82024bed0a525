"""What a chat template leaves out, in whatever form it writes the rest."""

import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import template_corpus
from gymnast.envs import Renderer
from gymnast.errors import TemplateError
from gymnast.trainers.dry_runs.lost import difference, lost_of_messages, lost_of_tools

texts = st.text(alphabet=st.characters(exclude_categories=["Cs", "Cc"]), max_size=30)
names = st.from_regex(r"[a-z][a-z_]{0,8}", fullmatch=True)


@st.composite
def tools(draw: st.DrawFn) -> list[dict[str, Any]]:
    parameters = st.dictionaries(
        names, st.fixed_dictionaries({"type": st.just("string"), "description": texts}), max_size=3
    )
    return [
        {
            "type": "function",
            "function": {
                "name": name,
                "description": draw(texts),
                "parameters": {"type": "object", "properties": draw(parameters)},
            },
        }
        for name in draw(st.lists(names, min_size=1, max_size=3, unique=True))
    ]


def offering(description: str) -> dict[str, Any]:
    """A tool with a parameter of its own name."""
    properties = {"a": {"type": "string", "description": ""}}
    parameters = {"type": "object", "properties": properties}
    function = {"name": "a", "description": description, "parameters": parameters}
    return {"type": "function", "function": function}


@given(offered=tools(), escapes=st.booleans(), indent=st.sampled_from([None, 2]))
@example(offered=[offering("(a)")], escapes=False, indent=None)  # one word, not a sentence
def test_schemas_in_json_lose_nothing(
    offered: list[dict[str, Any]], escapes: bool, indent: int | None
) -> None:
    text = json.dumps(offered, ensure_ascii=escapes, indent=indent)
    assert lost_of_tools(text, offered) == []


@given(offered=tools())
def test_a_text_that_says_nothing_loses_every_tool(offered: list[dict[str, Any]]) -> None:
    assert lost_of_tools("", offered) == [
        f"the tool {tool['function']['name']}" for tool in offered
    ]


PRICE = {
    "type": "function",
    "function": {
        "name": "price",
        "description": "Look up a price.\n\nIn a list of a shop.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "string", "description": "What it is, by name."}},
        },
    },
}


@pytest.mark.parametrize(
    ("text", "lost"),
    [
        (
            "// Look up a price.\n//\n// In a list of a shop.\n"
            "type price = (_: {\n// What it is, by name.\na: string}) => any;",
            [],
        ),
        ("price(a: str): What it is, by name.", ["the description of the tool price"]),
        (
            "price: Look up a price. In a list of a shop.",
            ["the parameter a of price"],
        ),
        (
            "price(a): Look up a price. In a list of a shop.",
            ["the description of the parameter a of price"],
        ),
        ("prices(a)", ["the tool price"]),
    ],
)
def test_what_is_left_out_of_a_tool_is_named(text: str, lost: list[str]) -> None:
    assert lost_of_tools(text, [PRICE]) == lost


def test_what_is_left_out_of_messages_is_named() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "price", "arguments": {}}}
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "A pear & a <plum>?"}]},
        {"role": "assistant", "content": "", "reasoning_content": "Hm.", "tool_calls": [call]},
    ]
    whole = "Be  brief.\nA pear &amp; a &lt;plum&gt;? (Hm.) price()"
    assert lost_of_messages(whole, messages) == []
    assert lost_of_messages("A pear & a <plum>?", messages) == [
        "the text of message 1 (system)",
        "the thoughts of message 3 (assistant)",
        "a call of message 3 (assistant)",
    ]


lines = st.lists(st.text("ab<", max_size=3), max_size=4).map(lambda each: "\n".join([*each, ""]))


@given(before=lines, more=lines, after=lines)
def test_without_their_difference_two_texts_are_one(before: str, more: str, after: str) -> None:
    text, other = before + more + after, before + after
    lacked = difference(text, other) + "\n" if more else ""
    places = range(len(text) + 1)
    assert any(
        text[:n] + text[n + len(lacked) :] == other for n in places if text.startswith(lacked, n)
    )


def test_what_both_texts_have_around_it_is_no_part_of_it() -> None:
    without = "<s>user\nGo.</s>\n<s>assistant\n"
    text = "<s>system\nTools:\nprice\n</s>\n" + without
    assert difference(text, without) == "<s>system\nTools:\nprice\n</s>"
    assert difference(without, without) == ""
    told = "<s>system\nBe brief.\n\nTools:\nprice</s>\n" + without
    assert difference(told, "<s>system\nBe brief.</s>\n" + without) == "\nTools:\nprice</s>"


@pytest.mark.network
def test_no_template_of_a_real_model_is_said_to_lose_a_tool(
    templates: dict[str, template_corpus.Template],
) -> None:
    tools = [PRICE, {"type": "function", "function": {"name": "leave", "description": "Go."}}]
    asked, looked_at = [{"role": "user", "content": "What's a pear & <plum>?"}], 0
    for template in templates.values():
        try:
            renderer = Renderer(template_corpus.tokenizer_for(template))
            text = renderer.decode(renderer.prompt(asked, tools))
            written = difference(text, renderer.decode(renderer.prompt(asked)))
        except TemplateError:  # it cannot be used, or wants tools
            continue
        assert lost_of_tools(written, tools) == [], template.name
        assert lost_of_messages(text, asked) == [], template.name
        looked_at += 1
    assert looked_at > 100
