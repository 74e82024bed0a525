"""Calls with keywords in brackets: recognised in a rendering, and read as a model writes them."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymnast.envs.rendering.calls import probes
from gymnast.envs.rendering.calls.keyword_calls import KeywordCalls
from gymnast.envs.rendering.calls.literals import DEPTH, Notation
from gymnast.envs.rendering.calls.payloads import Malformed, MarkedCall, PayloadMatch

Write = Callable[[str, Mapping[str, Any]], str]
MARK, ESCAPE = '<|"|>', "<escape>"
NAME = st.from_regex(r"[^\W\d][\w.\-]{0,9}", fullmatch=True)
KEY = st.from_regex(r"[^\W\d][\w\-]{0,9}", fullmatch=True)
TEXT = st.text() | st.sampled_from(
    ["it's", 'a "b"', "\\", "a\nb", "'", "\\n", "), g(x=1", "{[(,:="]
)
TEXT = TEXT.filter(lambda text: MARK not in text and ESCAPE not in text)
NUMBER = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
VALUE = st.recursive(
    st.none() | st.booleans() | NUMBER | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEY, inner, max_size=3),
    max_leaves=8,
)
ARGUMENTS = st.dictionaries(KEY, VALUE, max_size=3)
CALLS = st.lists(st.tuples(NAME, ARGUMENTS), min_size=1, max_size=3)


def python(name: str, arguments: Mapping[str, Any]) -> str:
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"


def python_with_json(name: str, arguments: Mapping[str, Any]) -> str:
    return f"{name}({','.join(f'{k} = {json.dumps(v)}' for k, v in arguments.items())})"


def without_comma(name: str, arguments: Mapping[str, Any]) -> str:
    return f"{name}({''.join(f'{k}={json.dumps(v)}' for k, v in arguments.items())})"


def without_quotes(name: str, arguments: Mapping[str, Any]) -> str:
    return f"{name}({', '.join(f'{key}={value}' for key, value in arguments.items())})"


def all_in_quotes(name: str, arguments: Mapping[str, Any]) -> str:
    written = (f'{key}="{value}"' for key, value in arguments.items())
    return f"{name}({', '.join(written)})"


def without_escapes(name: str, arguments: Mapping[str, Any]) -> str:
    written = (f"{k}='{v}'" if isinstance(v, str) else f"{k}={v}" for k, v in arguments.items())
    return f"{name}({', '.join(written)})"


def _marked_up(value: Any) -> str:
    if isinstance(value, str):
        return f"{MARK}{value}{MARK}"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{_marked_up(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return f"[{','.join(map(_marked_up, value))}]"
    return json.dumps(value)


def braces(name: str, arguments: Mapping[str, Any]) -> str:
    return name + _marked_up(dict(arguments))


def escaped_braces(name: str, arguments: Mapping[str, Any]) -> str:
    return name + "{" + ",".join(f"{k}:{ESCAPE}{v}{ESCAPE}" for k, v in arguments.items()) + "}"


def found_in(before: str, write: Write, after: str) -> tuple[PayloadMatch | None, str]:
    def render(arguments: Mapping[str, Any]) -> str:
        return before + write(probes.NAMES[0], arguments) + after

    region = render(probes.ARGUMENTS[0])
    return KeywordCalls.recognise(MarkedCall(region, render)), region


def derived(before: str, write: Write, after: str) -> KeywordCalls:
    found, _ = found_in(before, write, after)
    assert found is not None
    assert isinstance(found.payload, KeywordCalls)
    return found.payload


PYTHON = derived("[", python, "]")
BARE = derived("[", without_quotes, "]")
JOINED = derived("[", without_comma, "]")
QUOTED = derived("[", all_in_quotes, "]")
UNESCAPED = derived("[", without_escapes, "]")
BRACES = derived("", braces, "")
ESCAPED = derived("", escaped_braces, "")
ALL = (PYTHON, BARE, JOINED, QUOTED, UNESCAPED, BRACES, ESCAPED)


def schema(**types: str) -> dict[str, Any]:
    return {"f": {"properties": {name: {"type": kind} for name, kind in types.items()}}}


def arguments_of(payload: KeywordCalls, text: str, schemas: Any = None) -> dict[str, Any]:
    (call,), end = payload.read(text, 0, schemas or {}, "")
    assert (call.name, call.error, end) == ("f", None, len(text))
    return call.arguments


@pytest.mark.parametrize(
    ("before", "write", "after", "start", "end", "payload"),
    [
        ("<h>\n<|call|>[", python, "]<|end|>", 12, 7, KeywordCalls("(", "=", Notation())),
        ("\n\n[", without_quotes, "]\n", 2, 1, KeywordCalls("(", "=", Notation(bare=True))),
        ("[", without_comma, "]", 0, 0, KeywordCalls("(", "=", Notation(), comma=False)),
        ("[", python_with_json, ", g(x=1)]<e>", 0, 3, KeywordCalls("(", "=", Notation())),
    ],
)
def test_a_list_of_calls_is_recognised(
    before: str, write: Write, after: str, start: int, end: int, payload: KeywordCalls
) -> None:
    found, region = found_in(before, write, after)
    assert found is not None
    assert (found.start, len(region) - found.end) == (start, end)
    assert found.payload == KeywordCalls(**vars(payload) | {"listed": True})


@pytest.mark.parametrize(
    ("before", "write", "after", "payload"),
    [
        ("<h><|call>call:", braces, "<call|><e>", KeywordCalls("{", ":", Notation(MARK))),
        (
            "<h>call:",
            escaped_braces,
            "<e>",
            KeywordCalls("{", ":", Notation(ESCAPE), quoted=True),
        ),
        ("<h>functions.", python, "<e>", KeywordCalls("(", "=", Notation())),
        ("[TOOL] [", python, "[/TOOL]", KeywordCalls("(", "=", Notation())),
    ],
)
def test_a_call_without_a_list_is_recognised_from_its_name_on(
    before: str, write: Write, after: str, payload: KeywordCalls
) -> None:
    found, region = found_in(before, write, after)
    assert found == PayloadMatch(payload, len(before), len(region) - len(after))


def test_whether_a_template_escapes_and_quotes_numbers_is_learnt() -> None:
    assert (QUOTED.quoted, QUOTED.escaped) == (True, False)
    assert (UNESCAPED.quoted, UNESCAPED.escaped) == (False, False)
    assert (PYTHON.quoted, PYTHON.escaped) == (False, True)


@pytest.mark.parametrize(
    "region",
    [
        '{"name": "zqfirst", "arguments": {"zqa": "Zqone", "zqb": 7919}}',
        'zqfirst{"zqa": "Zqone", "zqb": 7919}',
        "<function=zqfirst><parameter=zqa>Zqone</parameter><parameter=zqb>7919</parameter>",
        "zqfirst(zqa='Zqone'",
    ],
)
def test_other_syntaxes_are_not(region: str) -> None:
    assert KeywordCalls.recognise(MarkedCall(region, lambda arguments: None)) is None


@given(CALLS, st.sampled_from([PYTHON, BARE, JOINED, UNESCAPED]))
def test_correct_python_is_read_whatever_the_template_writes(
    calls: list[Any], payload: KeywordCalls
) -> None:
    for write in (python, python_with_json):
        text = f"[{', '.join(write(*call) for call in calls)}]"
        read, end = payload.read(f" \n{text} ", 0, {}, "")
        assert [(call.name, call.arguments, call.error) for call in read] == [
            (*call, None) for call in calls
        ]
        assert end == len(text) + 2


@given(NAME, ARGUMENTS)
def test_calls_in_braces_are_read(name: str, arguments: dict[str, Any]) -> None:
    text = braces(name, arguments)
    (call,), end = BRACES.read(text + "<call|>", 0, {}, "<call|>")
    assert (call.name, call.arguments, call.error, end) == (name, arguments, None, len(text))


@given(st.lists(VALUE, max_size=3))
def test_where_all_is_quoted_the_schema_tells_the_type(values: list[Any]) -> None:
    kinds = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array"}
    kinds |= {dict: "object", type(None): "null"}
    arguments = {f"k{n}": value for n, value in enumerate(values)}
    types = {key: kinds[type(value)] for key, value in arguments.items()}
    assert arguments_of(ESCAPED, escaped_braces("f", arguments), schema(**types)) == arguments
    if all(isinstance(value, int | str) for value in values):
        written = python("f", {key: str(value) for key, value in arguments.items()})
        assert arguments_of(QUOTED, written, schema(**types)) == arguments


@given(st.dictionaries(KEY, st.none() | st.booleans() | NUMBER | TEXT, max_size=3))
def test_a_missing_comma_is_read_where_the_template_leaves_it_out(
    arguments: dict[str, Any],
) -> None:
    # After a number or a constant only a key that cannot belong to it: `1e5=2` could be read twice.
    keyed = {f"z{key.replace('-', '_')}": value for key, value in arguments.items()}
    assert arguments_of(JOINED, f"[{without_comma('f', keyed)}]") == keyed
    with pytest.raises(Malformed):
        PYTHON.read("[f(x=1y=2)]", 0, {}, "")


@pytest.mark.parametrize(
    ("payload", "text", "arguments"),
    [
        (PYTHON, "f()", {}),
        (PYTHON, "[ f ( x = 1 , ) , ]", {"x": 1}),
        (PYTHON, "f(x=True, y=null, z=-.5e1)", {"x": True, "y": None, "z": -5.0}),
        (PYTHON, "f(x={'a': None, \"b\": true, c: [1,],})", {"x": {"a": None, "b": 1, "c": [1]}}),
        (PYTHON, r"f(x='\x41\u0042\U00000043\104\d\/')", {"x": r"ABCD\d/"}),
        (PYTHON, r"f(x='\ud83d\ude00', y='\ud83d\\')", {"x": "😀", "y": "\ud83d\\"}),
        (PYTHON, 'f(x="""a "b"\nc""", y=\'\'\'\'d\'\'\')', {"x": 'a "b"\nc', "y": "'d"}),
        (PYTHON, "f(content-type='x', a b=2)", {"content-type": "x", "a b": 2}),
        (BARE, "[f(x=New York, y=22, z=a'b)]", {"x": "New York", "y": 22, "z": "a'b"}),
        (BARE, "[f(x='22', y=http://a.b/?c=d)]", {"x": "22", "y": "http://a.b/?c=d"}),
        (UNESCAPED, "[f(x='it's, isn't it', y='a'b')]", {"x": "it's, isn't it", "y": "a'b"}),
        (QUOTED, "[f(x=\"['a', 1]\", y=['1', 2])]", {"x": ["a", 1], "y": ["1", 2]}),
        (BRACES, f'f{{x:{MARK}it\'s "x" \\n{MARK}}}', {"x": 'it\'s "x" \\n'}),
        (BRACES, f"f{{y:{{{MARK}a b{MARK}:1}}}}", {"y": {"a b": 1}}),
        (BRACES, "f{ x : None , y : [ ] }", {"x": None, "y": []}),
    ],
)
def test_ways_to_write(payload: KeywordCalls, text: str, arguments: dict[str, Any]) -> None:
    assert arguments_of(payload, text) == arguments


def test_the_schema_decides_about_words() -> None:
    types = schema(text="string", number="integer")
    assert arguments_of(PYTHON, "f(text=22, number=22)", types) == {"text": "22", "number": 22}
    assert arguments_of(PYTHON, "f(text='22', number='22')", types) == {
        "text": "22",
        "number": "22",
    }
    assert arguments_of(PYTHON, "f(text=None)", types) == {"text": None}
    assert arguments_of(BARE, "f(text=None, number=22)", types) == {"text": "None", "number": 22}
    assert arguments_of(BRACES, "f{text:007}".replace("007", "7"), types) == {"text": "7"}
    lists = {"f": {"properties": {"x": {"type": "array", "items": {"type": "string"}}}}}
    assert arguments_of(PYTHON, "f(x=[1, 'b'])", lists) == {"x": ["1", "b"]}


def test_arguments_without_names_follow_the_schema() -> None:
    types = schema(a="string", b="integer", c="integer")
    assert arguments_of(PYTHON, "f('x', 2, c=3)", types) == {"a": "x", "b": 2, "c": 3}


@pytest.mark.parametrize(
    ("text", "position", "rule"),
    [
        ("[f(x=1, x=2)]", 8, "'x' is given twice"),
        ("[f('x', a='y')]", 8, "'a' is given twice"),
        ("[f(a={'k': 1, 'k': 2})]", 3, "the element 'k' is given twice"),
        ("[f(a={'o': {k: 1, 'k': 2}})]", 3, "the element 'k' is given twice"),
        ("[f(1, 2, 3)]", 9, "no name; write KEY=VALUE"),
        ("[f(b=1, 'x')]", 8, "comes after one with a name"),
        ("[f(a='x', b=1, 2, 3)]", 15, "comes after one with a name"),
    ],
)
def test_a_call_whose_arguments_clash_carries_its_error(
    text: str, position: int, rule: str
) -> None:
    text = text.replace("]", ", g(z=1)]")
    (bad, good), end = PYTHON.read(text, 0, schema(a="string", b="integer"), "")
    assert (bad.name, bad.arguments) == ("f", {})
    assert bad.error is not None
    assert f"at character {position}: " in bad.error
    assert rule in bad.error
    assert (good.name, good.arguments, good.error, end) == ("g", {"z": 1}, None, len(text))


@pytest.mark.parametrize(
    ("payload", "text", "position", "rule", "name"),
    [
        (PYTHON, "", 0, "expected the tool's name", ""),
        (PYTHON, "[]", 1, "no call in it", ""),
        (PYTHON, "[f", 2, "expected '(' after the tool's name", "f"),
        (PYTHON, "f{x:1}", 1, "expected '(' after the tool's name", "f"),
        (PYTHON, "[f(x=", 5, "the text ends", "f"),
        (PYTHON, "[f(x=1", 6, "the text ends before ')'", "f"),
        (PYTHON, "[f(x=1)", 7, "the text ends before ']'", ""),
        (PYTHON, "[f(x=1) g(x=2)]", 8, "expected ',' or ']'", ""),
        (PYTHON, "[f(x=1 y=2)]", 7, "expected ',' or ')'", "f"),
        (PYTHON, "[f(x='it's')]", 9, "expected ',' or ')', not 's'", "f"),
        (PYTHON, "[f(x='abc)]", 5, "not closed", "f"),
        (PYTHON, "[f(x=abc)]", 5, "write a string as '...'", "f"),
        (PYTHON, "[f(x=2024-01-01)]", 5, "write a string as '...'", "f"),
        (PYTHON, "[f(x=g(y=1))]", 5, "a value cannot be a call", "f"),
        (PYTHON, "[f(x=,)]", 5, "expected a value, not ','", "f"),
        (PYTHON, "[f(x=1e999)]", 5, "too large", "f"),
        (PYTHON, "[f(x=nan)]", 5, "not a number or a constant", "f"),
        (PYTHON, "[f(x={'a' 1})]", 10, "expected ':' after a key", "f"),
        (PYTHON, f"[f(x={'[' * 200})]", 5 + DEPTH, "nested more than 100 times", "f"),
        (UNESCAPED, "[f(x='a'], g(y='b')]", 8, "expected ',' or ')', not ']'", "f"),
        (BRACES, f"f{{x:{MARK}abc}}", 4, f"not closed: {MARK}", "f"),
        (BRACES, 'f{x:"abc"}', 4, "expected a value", "f"),
        (BRACES, "f{x:abc}", 4, f"write a string as {MARK}...{MARK}", "f"),
        (BRACES, "f{22}", 2, "expected an argument, KEY:VALUE", "f"),
    ],
)
def test_what_cannot_be_read_says_where_and_why(
    payload: KeywordCalls, text: str, position: int, rule: str, name: str
) -> None:
    for shift in (0, 3):
        with pytest.raises(Malformed) as caught:
            payload.read(" " * shift + text, shift, {}, "")
        assert rule in str(caught.value)
        assert (caught.value.position, caught.value.name) == (position + shift, name)


PIECES = [
    *"[](){},=:'\"\\fx1e.-é",
    *("true", "None", "f(", "x=", "x:", "'''", MARK, ESCAPE),
]


@given(
    st.lists(st.sampled_from([*PIECES, " ", "\n"]) | st.text(max_size=3), max_size=20).map("".join),
    st.sampled_from(ALL),
)
def test_random_text_raises_nothing_but_malformed(text: str, payload: KeywordCalls) -> None:
    for start in ("", "[f(x=", "f(", "f{x:"):
        try:
            calls, end = payload.read(start + text, 0, schema(x="string", y="integer"), "")
        except Malformed as error:
            assert 0 <= error.position <= len(start + text)
        else:
            assert calls
            assert 0 < end <= len(start + text)


@given(st.sampled_from([python, braces]), NAME, ARGUMENTS, st.data())
def test_torn_calls_raise_nothing_but_malformed(
    write: Write, name: str, arguments: dict[str, Any], data: st.DataObject
) -> None:
    text = write(name, arguments)
    cut = data.draw(st.integers(0, len(text) - 1))
    for payload in (PYTHON, BRACES):
        with pytest.raises(Malformed):
            payload.read(text[:cut], 0, {}, "")


@pytest.mark.parametrize("payload", ALL)
@pytest.mark.parametrize(
    "text",
    [*PIECES, "[f(", "f{x:", "{a:", "'a'b", "x ", "',x", "', ", '"\\'],
)
def test_long_hostile_text_is_refused(payload: KeywordCalls, text: str) -> None:
    for start in ("", "[f(x=", "[f(x='", "f{x:"):
        with pytest.raises(Malformed):
            payload.read(start + text * 10_000, 0, {}, "")


def test_only_a_list_with_a_name_and_its_bracket_begins_a_call() -> None:
    for text in ("[f(", " \n[ f(x=1)]", "[é.g-h(x=1)]"):
        assert PYTHON.begins(text, 0)
        assert PYTHON.begins(f"x{text}", 1)
    for text in ("f(x=1)", "[1, 2]", "[see (1)]", "[text](url)", "[", "", "[3(x=1)]", "[f{x:1}]"):
        assert not PYTHON.begins(text, 0)
    assert not BRACES.begins("f{x:1}", 0)
    assert not derived("", python, "").begins("[f(x=1)]", 0)
