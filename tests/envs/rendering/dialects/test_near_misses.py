"""What begins like a call and is none is answered; ordinary text is not."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from call_dialects import FAMILIES, renderer_of, written
from gymnast.agents import ScriptedAgent
from gymnast.agents.loading.tiny import tiny_tokenizer
from gymnast.envs import Environment, Renderer, tool
from gymnast.envs.rendering.dialects.dialect import read_calls
from gymnast.trainers import rollout
from gymnast.types import StopReason
from near_miss_list import TOOLS, Call, entries
from near_misses import LEAST_NOTICED, MOST_ALARMS, alarms, unnoticed
from ordinary_texts import ordinary_texts

SCHEMAS = {tool["function"]["name"]: tool["function"]["parameters"] for tool in TOOLS}
ADD = {"name": "add", "arguments": {"a": 17, "b": 25}}
RIGHT = f"<tool_call>\n{json.dumps(ADD)}\n</tool_call>"


def read(family: str, text: str) -> Any:
    renderer = renderer_of(family)
    return renderer.parse(renderer.tokenizer.encode(text), tools=TOOLS)


# --- How much is noticed, and how often wrongly


def test_the_listed_near_misses_are_noticed() -> None:
    listed = entries()
    assert len(listed) >= 300
    assert {entry.family for entry in listed} == set(FAMILIES)
    missed = unnoticed(listed)
    assert len(missed) <= (1 - LEAST_NOTICED) * len(listed), missed


def test_few_ordinary_texts_are_answers() -> None:
    texts = ordinary_texts(24)
    assert len(texts) == 24
    assert [taken for family in FAMILIES for taken in alarms(family, texts).taken] == []


@pytest.mark.slow
def test_500_ordinary_texts_are_answers_in_every_dialect() -> None:
    texts = ordinary_texts(500)
    found = [alarms(family, texts) for family in FAMILIES]
    assert all(one.texts > 490 for one in found)
    taken = [text for one in found for text in one.taken]
    assert len(taken) <= MOST_ALARMS * sum(one.texts for one in found), taken


@pytest.mark.parametrize(
    "text",
    [
        "I used get_weather with city='Paris', and it is 3 degrees.",
        "The `add` tool (a=1, b=2) returned 3, so add(1, 2) = 3.",
        'To look it up again, write search(query="x").',
        "```python\nresult = search(query='x')\nprint(result)\n```",
        "def add(a: int, b: int) -> int:\n    return a + b",
        'search = {"query": "x"}',
        "search:\n  query: x\n  limit: 3",
        '<form name="search"><input name="query"></form>',
        '{"name": "Paris", "temperature": 3}',
        '```json\n{"name": "gymnast", "version": "1.0"}\n```',
        '{"name": "get", "parameters": [{"in": "path", "type": "string"}], "tags": ["x"]}',
        '{"search": "x", "add": 3}',
        "Tags such as <tool>, <toolcalls> or <function call> are common in prompts.",
        "The set is [add] or {add}; see also the <name>add</name> element.",
    ],
)
@pytest.mark.parametrize("family", FAMILIES)
def test_text_that_names_tools_and_tags_is_an_answer(family: str, text: str) -> None:
    message = read(family, text)
    assert (message["content"], message["tool_calls"]) == (text, [])


# --- What the answer says


OBJECT = json.dumps(ADD)
SEEN = {
    ("hermes", f"<toolcall>{OBJECT}</toolcall>"): (
        "at character 0: '<toolcall>' does not begin a call; '<tool_call>' does"
    ),
    ("hermes", f"<|tool_call|>{OBJECT}"): (
        "at character 0: '<|tool_call|>' does not begin a call; '<tool_call>' does"
    ),
    ("hermes", OBJECT): "looks like a call, but is not written as one",
    ("hermes", '{"function": {"name": "sub", "arguments": {}}}'): (
        "at character 0: an object with a tool's name and arguments is not written as a call"
    ),
    ("qwen3 coder", "<function=sub>\n<parameter=x>\n1\n</parameter>\n</function>"): (
        "at character 0: '<function=sub>' must come after '<tool_call>'"
    ),
    ("glm-4.6", "sub<arg_key>x</arg_key><arg_value>1</arg_value>"): (
        "at character 3: '<arg_key>' belongs to a call, but no call could be read"
    ),
    ("kimi-k2", '<|tool_call_begin|>sub:0<|tool_call_argument_begin|>{"a": 1}'): (
        "at character 0: '<|tool_call_begin|>' belongs to a call"
    ),
    ("llama 3", '<|python_tag|>{"name": "add", "parameters": {"a": 1}}'): "looks like a call",
    ("pythonic", "add(a=1, b=2)"): "at character 0: 'add(a=' looks like a call",
}


@pytest.mark.parametrize(("family", "text"), SEEN)
def test_the_answer_shows_what_was_seen_and_what_is_right(family: str, text: str) -> None:
    dialect = renderer_of(family).dialect
    assert dialect is not None
    (call,) = read(family, text)["tool_calls"]
    assert call.error.startswith("call 1 could not be read at character ")
    assert SEEN[family, text] in call.error
    assert call.error.endswith(f"; write {dialect.example}")


def test_the_tool_is_named_where_it_is_known() -> None:
    assert [call.name for call in read("hermes", json.dumps(ADD))["tool_calls"]] == ["add"]


def test_text_before_a_near_miss_is_content() -> None:
    message = read("hermes", f"Let me add.\n\n```json\n{json.dumps(ADD)}\n```")
    assert message["content"] == "Let me add."
    assert "at character 13" in message["tool_calls"][0].error


@pytest.mark.parametrize("miss", [f"<toolcall>{json.dumps(ADD)}</toolcall>", json.dumps(ADD)])
def test_right_calls_before_and_behind_a_near_miss_are_read(miss: str) -> None:
    calls = read("hermes", f"{RIGHT}\n{miss}\n{RIGHT}")["tool_calls"]
    assert [call.error is None for call in calls] == [True, False, True]
    assert "call 2 could not be read" in calls[1].error


@pytest.mark.parametrize("family", FAMILIES)
def test_what_a_template_writes_around_calls_is_no_near_miss(family: str) -> None:
    calls: list[Call] = [("add", {"a": 1, "b": 2}), ("search", {"query": "x"})]
    dialect = renderer_of(family).dialect
    calls = calls if dialect is not None and dialect.several else calls[:1]
    message = read(family, written(family, *calls))
    assert [(call.name, call.arguments) for call in message["tool_calls"]] == calls
    assert [call.error for call in message["tool_calls"]] == [None] * len(calls)


def test_a_response_template_lets_no_near_miss_through() -> None:
    tokenizer = tiny_tokenizer()
    tokenizer.response_template = {
        "start_anchor": "<|im_start|>assistant\n",
        "fields": {
            "tool_calls": {
                "open": "<tool_call>",
                "close": "</tool_call>",
                "repeats": True,
                "content": "json",
                "transform": {"type": "function", "function": "{content}"},
            },
            "content": {"close": "<|im_end|>"},
        },
    }
    renderer = Renderer(tokenizer)
    context = renderer.prompt([{"role": "user", "content": "17 + 25?"}], TOOLS)
    for text, right in ((RIGHT, True), (f"So:\n<toolcall>{OBJECT}</toolcall>", False)):
        ids = tokenizer.encode(text + "<|im_end|>")
        message = renderer.parse(ids, context_ids=context, tools=TOOLS)
        assert [call.error is None for call in message["tool_calls"]] == [right]
    assert message["content"] == "So:"
    assert "'<toolcall>' does not begin a call" in message["tool_calls"][0].error


# --- In an episode


class Sums(Environment):
    """One tool."""

    @tool
    def add(self, a: int, b: int) -> int:
        """Add.

        Args:
            a: One.
            b: Another.
        """
        return a + b

    def reward(self, episode: Any) -> float:
        return float("42" in episode.answer)


async def _episode(renderer: Renderer, encode: Callable[[str], list[int]], *turns: str) -> Any:
    env = Sums(renderer)
    agent = ScriptedAgent([encode(turn + "<|im_end|>") for turn in turns])
    try:
        return await rollout(env, agent, {"prompt": "17 + 25?"})
    finally:
        await env.aclose()


def test_a_near_miss_does_not_end_the_episode(
    renderer: Renderer, encode: Callable[[str], list[int]]
) -> None:
    miss = f"<toolcall>{json.dumps(ADD)}</toolcall>"
    played = asyncio.run(_episode(renderer, encode, miss, RIGHT, "It is 42."))
    assert played.stop_reason is StopReason.answered
    assert played.reward == 1.0
    results = [message["content"] for message in played.messages if message["role"] == "tool"]
    assert "'<toolcall>' does not begin a call" in results[0]
    assert "Call it as" in results[0] or "Tools:" in results[0]
    assert results[1] == "42"


class Talk(Environment):
    """No tool."""

    def reward(self, episode: Any) -> float:
        return 1.0


@pytest.mark.parametrize(
    "answer",
    [
        json.dumps(ADD),
        '{"action": "north", "parameters": {}}',
        '```json\n{"tool": "hammer", "input": {"nails": 3}}\n```',
        "<toolcall>{}</toolcall>",
    ],
)
def test_where_no_tool_is_on_offer_nothing_is_nearly_a_call(
    answer: str, renderer: Renderer, encode: Callable[[str], list[int]]
) -> None:
    env = Talk(renderer)
    env.reset(options={"row": {"prompt": "Where to?"}})
    *_, info = env.step(encode(answer + "<|im_end|>"))
    assert (info["stop_reason"], env.episode.answer) == (StopReason.answered, answer)
    env.close()


# --- However much is written


@pytest.mark.parametrize("family", ["hermes", "qwen3 coder", "llama 3", "kimi-k2", "gpt-oss"])
@pytest.mark.parametrize(
    "repeated",
    [
        *("<", "[", "{", '{"name":', '{"name": "x", "arguments": ', "add(", "add\n", "call "),
        *("```json\n", "<tool cal>", "<function=", "\n", " ", "> ", "{'name': '", "[ ", "add{ "),
        *("&lt;", '{"id":[', "<parameter= ", "add" + " " * 60),
    ],
)
def test_looking_for_near_misses_takes_time_in_proportion_to_the_text(
    family: str, repeated: str
) -> None:
    # Where it takes the square, this takes minutes.
    dialect = renderer_of(family).dialect
    assert dialect is not None
    text = "So: " + repeated * (40_000 // len(repeated))
    content, calls = read_calls(text, dialect, SCHEMAS)
    assert content or calls


@pytest.mark.parametrize("tags", ["</a", "</a\n", "</>", "```x ", "[A] <b"])
def test_tags_before_a_near_miss_are_gone_through_once(tags: str) -> None:
    # Where each can be read in two ways, this takes hours.
    dialect = renderer_of("hermes").dialect
    assert dialect is not None
    text = f"{tags * 40}> \u2026 {tags * (120 // len(tags))}>> <toolcall>{{"
    assert len(read_calls(text, dialect, SCHEMAS)[1]) == 1
