"""Arguments in markup of their own: recognised in a rendering, and read as a model writes them."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymnast.envs.rendering.calls import probes
from gymnast.envs.rendering.calls.parameters import Parameters
from gymnast.envs.rendering.calls.payloads import Malformed, MarkedCall, PayloadMatch

Write = Callable[[str, Mapping[str, Any]], str]
LARGE = 100_000  # characters: reading that takes their square would not end within a test's time


def raw(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def on_lines(name: str, arguments: Mapping[str, Any]) -> str:
    written = (f"<parameter={k}>\n{raw(v)}\n</parameter>\n" for k, v in arguments.items())
    return f"<function={name}>\n{''.join(written)}</function>"


def in_pairs(name: str, arguments: Mapping[str, Any]) -> str:
    return name + "".join(f"<key>{k}</key><value>{raw(v)}</value>" for k, v in arguments.items())


def with_types(name: str, arguments: Mapping[str, Any]) -> str:
    def argument(key: str, value: Any) -> str:
        return f'<p name="{key}" string="{str(isinstance(value, str)).lower()}">{raw(value)}</p>'

    return f'<f name="{name}">{"".join(argument(k, v) for k, v in arguments.items())}</f>'


def enclosed(name: str, arguments: Mapping[str, Any]) -> str:
    def text(value: Any) -> str:
        plain = not isinstance(value, str) or not set("<&\n") & set(value)
        return raw(value) if plain else f"<![CDATA[{value}]]>"

    written = (f'<p name="{key}">{text(value)}</p>' for key, value in arguments.items())
    return f'<f name="{name}">{"".join(written)}</f>'


def element(key: str, value: Any) -> str:
    if isinstance(value, list):
        value = "".join(element("item", item) for item in value)
    elif isinstance(value, dict):
        value = "".join(element(inner, item) for inner, item in value.items())
    return f"[<{key}>{raw(value)}[</{key}>"


def nested(name: str, arguments: Mapping[str, Any]) -> str:
    return f'[<f name="{name}">{"".join(element(k, v) for k, v in arguments.items())}[</f>'


def found_in(
    write: Write, before: str = "<h>", after: str = "<e>"
) -> tuple[PayloadMatch | None, str]:
    def render(arguments: Mapping[str, Any]) -> str:
        return before + write(probes.NAMES[0], arguments) + after

    region = render(probes.ARGUMENTS[0])
    return Parameters.recognise(MarkedCall(region, render)), region


def derived(write: Write) -> Parameters:
    found, _ = found_in(write)
    assert found is not None
    assert isinstance(found.payload, Parameters)
    return found.payload


ON_LINES, IN_PAIRS, WITH_TYPES = derived(on_lines), derived(in_pairs), derived(with_types)
ENCLOSED, NESTED = derived(enclosed), derived(nested)
OPENINGS = ("<function=", "", '<f name="', '<f name="', '[<f name="')
CLOSINGS = ("</function>", "</call>", "</f>", "</f>", "[</f>")
ALL = list(
    zip(
        (ON_LINES, IN_PAIRS, WITH_TYPES, ENCLOSED, NESTED),
        (on_lines, in_pairs, with_types, enclosed, nested),
        OPENINGS,
        CLOSINGS,
        strict=True,
    )
)
TEXT = st.text() | st.sampled_from(
    ["\n a \n", "<b>&amp;</b>", "22", "null", '"x"', "[1]", "]]", "  ", "</", "é中"]
)
MARKS = ("<parameter", "</parameter", "<value>", "</value>", "<p name", "</p>", "]]>", "[<")
TEXT = TEXT.filter(lambda text: not any(mark in text for mark in MARKS))
VALUE = TEXT | st.integers() | st.booleans() | st.none() | st.lists(st.integers() | TEXT)
KEY = st.from_regex(r"[a-z][a-z_0-9]{0,8}", fullmatch=True).filter("item".__ne__)
ARGUMENTS = st.dictionaries(KEY, VALUE, max_size=4)
KINDS = {str: "string", bool: "boolean", int: "integer", type(None): "null", list: "array"}


def schemas_of(arguments: Mapping[str, Any]) -> dict[str, Any]:
    properties: dict[str, Any] = {k: {"type": KINDS[type(v)]} for k, v in arguments.items()}
    return {"f": {"type": "object", "properties": properties}}


def read(
    payload: Parameters, text: str, schema: Mapping[str, Any] | None = None, close: str = "</f>"
) -> dict[str, Any]:
    (call,), _ = payload.read(text, 0, {"f": schema or {}}, close)
    assert (call.name, call.error) == ("f", None)
    return call.arguments


# --- Recognised


def test_the_markup_of_name_keys_and_values_is_learnt() -> None:
    assert (IN_PAIRS.open, IN_PAIRS.assign) == ("<key>", "</key><value>")
    assert (IN_PAIRS.after_name, IN_PAIRS.close) == ("", "</value>")
    assert (ENCLOSED.open, ENCLOSED.assign) == ('<p name="', '">')
    assert ENCLOSED.enclosure == ("<![CDATA[", "]]>")
    assert (ON_LINES.before, ON_LINES.after) == ("\n", "\n")
    assert WITH_TYPES.text_word == "true"
    assert NESTED.item == "item"


def test_the_call_is_found_from_its_name_to_the_last_arguments_end() -> None:
    for _, write, opening, _ in ALL:
        found, region = found_in(write, "<h>Well: ", "<e>")
        assert found is not None
        assert found.start == len("<h>Well: " + opening)
        last = max(region.rfind(mark) for mark in ("</parameter", "</value>", "</p>", "[</zqb>"))
        assert last < found.end <= len(region) - len("<e>")


@pytest.mark.parametrize(
    "region",
    [
        '{"name": "zqfirst", "arguments": {"zqa": "Zqone", "zqb": 7919}}',
        "zqfirst(zqa='Zqone', zqb=7919)",
        "zqfirst zqa Zqone zqb 7919",
        "<f=zqfirst><p=zqb>7919</p><p=zqa>Zqone</p></f>",
        "<f=zqfirst><p=zqa>Zqone</p>",
    ],
)
def test_other_syntaxes_are_not(region: str) -> None:
    assert Parameters.recognise(MarkedCall(region, lambda arguments: None)) is None


# --- Read


@given(ARGUMENTS, st.sampled_from(ALL))
def test_what_the_template_writes_is_read_back(arguments: dict[str, Any], kind: Any) -> None:
    payload, write, opening, close = kind
    if payload is NESTED:  # it writes no types inside of lists; see below
        arguments = {k: value for k, value in arguments.items() if not isinstance(value, list)}
    written = write("f", arguments) + ("</call>" if payload is IN_PAIRS else "")
    (call,), end = payload.read(written[len(opening) :], 0, schemas_of(arguments), close)
    assert (call.name, call.arguments, call.error) == ("f", arguments, None)
    assert written[len(opening) + end :].strip().startswith(close.strip()[:1])


def test_a_call_without_arguments_is_read() -> None:
    for payload, _, _, close in ALL:
        (call,), end = payload.read(f"f{payload.after_name}{close}", 0, {}, close)
        assert (call.name, call.arguments, end) == ("f", {}, 1 + len(payload.after_name))
    (call,), end = IN_PAIRS.read("f", 0, {}, "</call>")
    assert (call.name, end) == ("f", 1)


def test_a_value_may_hold_its_own_closing_markup() -> None:
    text = 'f"><p name="a">x</p>y</p>\n<p name="b">z</p> </p></f>'
    assert read(ENCLOSED, text) == {"a": "x</p>y", "b": "z</p> "}
    code = "<![CDATA[</p><p name=]]>"
    assert read(ENCLOSED, f'f"><p name="a">{code}</p></f>') == {"a": "</p><p name="}


def test_one_line_end_on_each_side_of_a_value_is_the_templates() -> None:
    text = "f>\n<parameter=a>\n\n x \n\n</parameter>\n</function>"
    assert read(ON_LINES, text, close=CLOSINGS[0]) == {"a": "\n x \n"}
    text = "f>\n<parameter=a>x</parameter>\n</function>"
    assert read(ON_LINES, text, close=CLOSINGS[0]) == {"a": "x"}


def test_an_enclosure_may_stand_on_lines_of_its_own() -> None:
    assert read(ENCLOSED, 'f"><p name="a">\n<![CDATA[ 22]]>\n</p></f>') == {"a": " 22"}


@pytest.mark.parametrize(
    ("word", "value", "schema", "expected"),
    [
        ("true", "22", {}, "22"),
        ("false", "22", {}, 22),
        ("false", '{"x": [null]}', {}, {"x": [None]}),
        ("false", "22", {"properties": {"a": {"type": "string"}}}, "22"),
        ("true", "22", {"properties": {"a": {"type": "integer"}}}, "22"),
    ],
)
def test_an_attribute_says_what_is_a_string(
    word: str, value: str, schema: dict[str, Any], expected: Any
) -> None:
    assert read(WITH_TYPES, f'f"><p name="a" string="{word}">{value}</p></f>', schema) == {
        "a": expected
    }


def escaped(name: str, arguments: Mapping[str, Any]) -> str:
    def attribute(text: str) -> str:
        return text.replace("&", "&amp;").replace('"', "&quot;")

    written = (f'<p name="{attribute(k)}">{raw(v)}</p>' for k, v in arguments.items())
    return f'<f name="{attribute(name)}">{"".join(written)}</f>'


QUOTED = st.text(st.sampled_from('ab&;"<>=') | st.characters(categories=["L"]), min_size=1)


@given(st.dictionaries(QUOTED.filter(lambda key: key == key.strip()), st.integers(), max_size=3))
def test_names_and_keys_in_quotes_hold_any_character(arguments: dict[str, int]) -> None:
    payload = derived(escaped)
    assert payload.entities and not WITH_TYPES.entities
    text = escaped("a&b", arguments).removeprefix('<f name="')
    (call,), _ = payload.read(text, 0, {}, "</f>")
    assert (call.name, call.arguments) == ("a&b", arguments)


def test_types_come_from_wherever_the_schema_says_them() -> None:
    union = {"anyOf": [{"properties": {"a": {"type": "string"}}}, {"type": "null"}]}
    free = {"additionalProperties": {"type": "string"}}
    for schema in (union, free):
        assert read(ENCLOSED, 'f"><p name="a">22</p></f>', schema) == {"a": "22"}


TREES = st.recursive(
    st.integers() | st.sampled_from(["x", "a b", "\n"]),
    lambda inner: (
        st.lists(inner, min_size=1, max_size=3)
        | st.dictionaries(KEY, inner, min_size=1, max_size=3)
    ),
    max_leaves=8,
)


@given(st.dictionaries(KEY, TREES, max_size=3))
def test_lists_and_objects_in_markup_are_read(arguments: dict[str, Any]) -> None:
    text = nested("f", arguments)[len(OPENINGS[4]) :]
    assert read(NESTED, text, close="[</f>") == arguments


def test_empty_lists_and_objects_in_markup_need_a_schema() -> None:
    schema = {"properties": {"a": {"type": "array"}, "b": {"type": "object"}}}
    text = 'f">[<a>[</a>[<b>[</b>[<c>[</c>[</f>'
    assert read(NESTED, text, schema, "[</f>") == {"a": [], "b": {}, "c": ""}


# --- Malformed


@pytest.mark.parametrize(
    ("payload", "text", "at", "rule"),
    [
        (ENCLOSED, 'f"><p name="a">1</f>', 'a">1', "not closed by '</p>'"),
        (ENCLOSED, 'f"><p name="a">1</p><p name="a">2</p></f>', '<p name="a">2', "given twice"),
        (ENCLOSED, 'f"><p name="a">{"k": 1, "k": 2}</p></f>', '<p name="a">', "given twice"),
        (
            ENCLOSED,
            'f"><p name="a">[{"k": 1, "\\u006b": 2}]</p></f>',
            '<p name="a">',
            "given twice",
        ),
        (ENCLOSED, "f\"><p name=\"a\">{'k': 1, 'k': 2}</p></f>", '<p name="a">', "given twice"),
        (ENCLOSED, 'f"><p name=" ">1</p></f>', ' ">1', "key must be followed by"),
        (ENCLOSED, "f <p></f>", "f", "name must be followed by"),
        (ENCLOSED, '">', "", "must begin with the tool's name"),
        (ENCLOSED, 'two words">', "", "must begin with the tool's name"),
        (NESTED, 'f">[<a>[<b>1[</a>[</f>', "[<b>", "'b' is not closed"),
        (NESTED, 'f">[<a>[<b>1[</b>x[</a>[</f>', "x", "'a' is not closed"),
        (NESTED, 'f">[<a>[<b>1[</b>[<b>2[</b>[</a>[</f>', "[<b>2", "is given twice"),
        (NESTED, 'f">' + "[<a>" * 200, None, "nested too deeply"),
        (NESTED, 'f">[<a>[<f name="g">[</f>', '[<f name="g', "must begin with its key"),
    ],
)
def test_a_broken_rule_says_where(
    payload: Parameters, text: str, at: str | None, rule: str
) -> None:
    with pytest.raises(Malformed, match=rule) as caught:
        payload.read(text, 0, {}, "[</f>" if payload is NESTED else "</f>")
    if at is not None and rule.startswith("not closed"):
        assert caught.value.position == text.index(at) + len(at) - 1
    elif at is not None:
        assert caught.value.position == text.index(at)
    assert caught.value.name in ("f", "")


WORDS = [
    "f",
    "a",
    "true",
    "item",
    "é",
    "<",
    ">",
    "</",
    "[<",
    "[</",
    '">',
    "</p>",
    "</f>",
    "<key>",
    "</value>",
    "</call>",
    "<parameter=",
    "]]>",
]
PIECES = st.sampled_from(
    [*WORDS, '<p name="', '" string="', "<![CDATA[", "</key><value>", " ", "\n"]
)


@given(st.lists(PIECES, max_size=25).map("".join), st.sampled_from(ALL))
def test_torn_and_mixed_markup_is_read_or_malformed(text: str, kind: Any) -> None:
    payload, _, _, close = kind
    try:
        (call,), end = payload.read(text, 0, {}, close)
    except Malformed as error:
        assert 0 <= error.position <= len(text)
    else:
        assert call.name and 0 < end <= len(text)


@pytest.mark.parametrize(
    "text",
    [
        'f"><p name="' + " " * LARGE,
        'f"><p name="a' + " " * LARGE,
        'f"><p name="' + "a " * (LARGE // 2),
        'f"' + " " * LARGE,
        'f"><p name="a">' + "</p>x" * (LARGE // 5),
        'f"><p name="a">' + "</p> " * (LARGE // 5) + "x",
        "x" * LARGE,
    ],
)
def test_reading_takes_time_in_proportion_to_the_text(text: str) -> None:
    for payload, _, _, close in ALL:
        with pytest.raises(Malformed):
            _, end = payload.read(text, 0, {}, close)
            if not text[end:].lstrip().startswith(close):
                raise Malformed(end, "what a dialect says of this")


@pytest.mark.parametrize(
    ("payload", "text", "close"),
    [
        (IN_PAIRS, "f<key>a</key><value>x<key>b</key><value>2</value></call>", "</call>"),
        (
            ON_LINES,
            "f>\n<parameter=a>\nx\n<parameter=b>\n2\n</parameter>\n</function>",
            "</function>",
        ),
    ],
)
def test_an_argument_that_is_not_closed_does_not_swallow_the_next(
    payload: Parameters, text: str, close: str
) -> None:
    with pytest.raises(Malformed, match="the argument 'a' is not closed by"):
        payload.read(text, 0, {}, close)


def test_an_enclosed_value_has_the_type_of_its_schema() -> None:
    text = 'f"><p name="a"><![CDATA[{"b": "<"}]]></p><p name="c"><![CDATA[2]]></p></f>'
    properties = {"a": {"type": "object"}, "c": {"type": "string"}}
    assert read(ENCLOSED, text, {"properties": properties}) == {"a": {"b": "<"}, "c": "2"}
