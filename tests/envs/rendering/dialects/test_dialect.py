"""What a policy wrote becomes text and calls; a call that cannot be read says why."""

import json
from pathlib import Path
from typing import Any

import pytest

from gymnast.agents.loading.tiny import tiny_tokenizer
from gymnast.envs.rendering.calls.json_payloads import NameThenJson
from gymnast.envs.rendering.calls.parameters import Parameters
from gymnast.envs.rendering.dialects.dialect import Dialect, read_calls
from gymnast.envs.rendering.renderer import Renderer
from gymnast.errors import ConfigError, UserCodeError

XML = (Path(__file__).parents[1] / "chat_templates" / "xml.jinja").read_text()
TOOLS = [{"type": "function", "function": {"name": "add", "description": "", "parameters": {}}}]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return tiny_tokenizer()


@pytest.fixture(scope="module")
def renderer(tokenizer: Any) -> Renderer:
    return Renderer(tokenizer)


def test_arguments_may_be_a_json_string(renderer: Renderer) -> None:
    text = json.dumps({"name": "add", "arguments": json.dumps({"a": 3})})
    ids = renderer.tokenizer.encode(f"<tool_call>{text}</tool_call><|im_end|>")
    (read,) = renderer.parse(ids)["tool_calls"]
    assert (read.arguments, read.error) == ({"a": 3}, None)


@pytest.mark.parametrize(
    ("written", "rule"),
    [
        ('<tool_call>{"name": "add", "arguments": {"a": 3}', "ends inside the JSON"),
        ('<tool_call>{"name": "add", "argum', "ends inside the JSON"),
        ('<tool_call>{"name": "add", "arguments": {"a": 3}}', "expected '</tool_call>'"),
        ('<tool_call>{"name": "add" "arguments": {}}</tool_call>', "Expecting ',' delimiter"),
        ("<tool_call>add(3, 4)</tool_call>", "not JSON"),
        ('<tool_call>{"arguments": {}}</tool_call>', "must be the tool's name"),
        ('<tool_call>{"name": 3, "arguments": {}}</tool_call>', "must be the tool's name"),
        ('<tool_call>{"name": "add", "args": {}}</tool_call>', '"arguments" is missing'),
        ('<tool_call>{"name": "add", "arguments": [1]}</tool_call>', "object, not list"),
        ('<tool_call>{"name": "add", "arguments": "x y"}</tool_call>', "are a string"),
        ('<tool_call>{"name": "add", "arguments": {"a": NaN}}</tool_call>', "NaN is not JSON"),
        ("<tool_call>" + "[" * 9999 + "</tool_call>", "not JSON"),
        ("<tool_call>", "ends inside the JSON"),
    ],
)
def test_a_malformed_call_carries_its_error(renderer: Renderer, written: str, rule: str) -> None:
    ids = renderer.tokenizer.encode(f"So: {written}")
    message = renderer.parse(ids)
    (read,) = message["tool_calls"]
    assert rule in read.error
    assert "at character" in read.error
    dialect = renderer.dialect
    assert dialect is not None and read.error.endswith(f"write {dialect.example}")
    assert message["content"] == "So:"


def test_calls_around_a_malformed_one_are_still_read(renderer: Renderer) -> None:
    good = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
    for bad in ("<tool_call>oops</tool_call>", "<tool_call>oops"):
        ids = renderer.tokenizer.encode(good + bad + good)
        read = renderer.parse(ids)["tool_calls"]
        assert [c.error is None for c in read] == [True, False, True]


def test_an_opening_that_is_only_repeated_is_one_broken_call(renderer: Renderer) -> None:
    good = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>'
    ids = renderer.tokenizer.encode(good + "<tool_call> \n" * 1000 + good)
    read = renderer.parse(ids)["tool_calls"]
    assert [call.error is None for call in read] == [True, False, True]


def test_what_was_read_of_a_broken_call_is_not_read_again(renderer: Renderer) -> None:
    inner = '<tool_call>{\\"name\\": \\"multiply\\", \\"arguments\\": {}}</tool_call>'
    text = f'<tool_call>{{"name": "add", "arguments": {{"a": "{inner}"}}}} and no end'
    (read,) = renderer.parse(renderer.tokenizer.encode(text))["tool_calls"]
    assert read.name == "add"
    assert "expected '</tool_call>'" in (read.error or "")


PAIRS = Dialect(Parameters("", "<k>", "</k><v>", "</v>"), "<call>", "</call>")
NAMED = Dialect(NameThenJson("<args>"), "<call>", "")


@pytest.mark.parametrize("dialect", [PAIRS, NAMED])
@pytest.mark.parametrize(
    "repeated",
    [
        "<call>x",
        "<call>x<args>",
        "<call>f<k>a</k><v>",
        "<call>f<k>a</k><v></v>x",
        "<call>" + " " * 99,
    ],
)
@pytest.mark.parametrize("after", ["", "</v>x", "<", " ", "<args>", "</call>"])
def test_reading_takes_time_in_proportion_to_the_text(
    dialect: Dialect, repeated: str, after: str
) -> None:
    # Where it takes the square, this takes minutes.
    text = repeated * (20_000 // len(repeated)) + (after or "x") * (20_000 // len(after or "x"))
    _, calls = read_calls(text, dialect)
    assert calls


def test_ids_of_weird_kinds_are_left_out(renderer: Renderer) -> None:
    weird: list[Any] = [None, "x", 1.5e300, float("nan"), [], 10**9, -1]
    assert renderer.parse(weird)["content"] == ""


def read_xml(text: str) -> list[dict[str, Any]]:
    """A user's parser."""
    if "<bad" in text:
        raise ValueError("a bad tag")
    name = text.partition('name="')[2].partition('"')[0]
    return [{"name": name, "arguments": '{"a": 3}'}] if name else []


def test_a_users_parser_reads_what_the_renderer_cannot(tokenizer: Any) -> None:
    renderer = Renderer(tokenizer, chat_template=XML, parser=read_xml)
    context = renderer.prompt([{"role": "user", "content": "3?"}], TOOLS)
    action = tokenizer.encode('<invoke name="add"><a>3</a></invoke><|im_end|>')
    (read,) = renderer.parse(action, tools=TOOLS)["tool_calls"]
    assert (read.name, read.arguments, read.error) == ("add", {"a": 3}, None)
    result = {"role": "tool", "content": "7", "tool_call_id": read.id, "name": "add"}
    observed = renderer.observe(context + action, [result], tools=TOOLS)
    expected = "\n<|im_start|>tool\n7<|im_end|>\n<|im_start|>assistant\n"
    assert tokenizer.decode(observed) == expected
    assert renderer.parse(tokenizer.encode("Hi"))["tool_calls"] == []
    (read,) = renderer.parse(tokenizer.encode("<bad"))["tool_calls"]
    assert "a bad tag" in read.error


@pytest.mark.parametrize("given", [3, ["x"], [{"arguments": {}}], "text"])
def test_a_parser_that_gives_something_else_is_the_users_error(tokenizer: Any, given: Any) -> None:
    renderer = Renderer(tokenizer, parser=lambda text: given)
    with pytest.raises(UserCodeError, match="the parser returned"):
        renderer.parse([5])


def test_a_parser_may_be_named_and_give_a_message(tokenizer: Any) -> None:
    renderer = Renderer(tokenizer, parser="json:loads")
    text = '{"content": "Hm", "tool_calls": [{"function": {"name": "add", "arguments": {}}}]}'
    message = renderer.parse(tokenizer.encode(text))
    assert message["content"] == "Hm" and message["tool_calls"][0].name == "add"
    for name, words in {
        "json:nothing": "'json' has no 'nothing'",
        "no_such_module:f": "there is no module 'no_such_module'",
        "json": "there is no parser 'json'",
        "json:__name__": "'json:__name__' is 'json', which is no function",
    }.items():
        with pytest.raises(ConfigError, match=f"parser: {words}"):
            Renderer(tokenizer, parser=name)


# --- Forms beyond what the template's history shows

BARE = (
    '{% if tools %}Call as marked[{"name": [its name], "arguments": {}}, ...]\n{{ tools | tojson }}'
    "{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content or '' }}"
    "{% for call in m.tool_calls or [] %}{{ {'name': call.function.name, 'arguments': "
    "call.function.arguments} | tojson }}{{ ',' if not loop.last }}{% endfor %}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
IN_ONE_PAIR = (
    "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}<|im_start|>{{ m.role }}\n"
    "{{ m.content or '' }}{% if m.tool_calls %}<calls>{% for call in m.tool_calls %}"
    "{{ call.function.name }}({% for key, value in call.function.arguments.items() %}{{ key }}="
    "{{ value | tojson }}{{ ', ' if not loop.last }}{% endfor %}){{ '\n' if not loop.last }}"
    "{% endfor %}</calls>{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
ONE, TWO = '{"name": "add", "arguments": {"a": 3}}', '{"name": "sub", "arguments": {}}'
BOTH = [("add", {"a": 3}, None), ("sub", {}, None)]


def calls_in(template: str, text: str) -> tuple[str, list[tuple[str, Any, str | None]]]:
    renderer = Renderer(tiny_tokenizer(), chat_template=template)
    message = renderer.parse(renderer.tokenizer.encode(text))
    return message["content"], [(c.name, c.arguments, c.error) for c in message["tool_calls"]]


@pytest.mark.parametrize("between", [";", "; ", " ;\n", ",", "\n", " "])
@pytest.mark.parametrize("end", ["", ";", " ;\n"])
def test_bare_calls_with_a_separator_all_count(between: str, end: str) -> None:
    assert calls_in(BARE, ONE + between + TWO + end) == ("", BOTH)


def test_text_behind_a_separator_stays_text() -> None:
    assert calls_in(BARE, ONE + "; and so on") == ("; and so on", BOTH[:1])


@pytest.mark.parametrize(
    ("text", "content"),
    [
        (f"marked[{ONE}, {TWO}]", ""),
        (f"marked {ONE}; {TWO}", ""),
        (f"Look. marked[{ONE}, {TWO}]", "Look."),
        (f"marked[{ONE}] or marked[{TWO}] then", "or\nthen"),
        (f"{ONE}, {TWO}", ""),
    ],
)
def test_the_word_that_the_prompt_wants_before_calls_is_read(text: str, content: str) -> None:
    assert calls_in(BARE, text) == (content, BOTH)


def test_that_word_alone_is_text_and_a_torn_call_behind_it_an_error() -> None:
    assert calls_in(BARE, "It is marked [in red].") == ("It is marked [in red].", [])
    _, ((_, _, error),) = calls_in(BARE, 'marked[{"name": "add", "arguments": }]')
    assert error is not None
    assert error.endswith('write marked[{"name": "TOOL", "arguments": {"KEY": "VALUE"}}]')


@pytest.mark.parametrize("between", ["\n", "\n\n", " ", "; ", ", "])
def test_keyword_calls_share_one_pair_of_delimiters(between: str) -> None:
    written = f"So <calls>add(a=3){between}sub()</calls>"
    assert calls_in(IN_ONE_PAIR, written) == ("So", BOTH)
    content, (first, second) = calls_in(IN_ONE_PAIR, f"<calls>add(a=3){between}sub(1, a</calls>")
    assert (content, first) == ("", BOTH[0])
    assert second[0] == "sub" and second[2] is not None
