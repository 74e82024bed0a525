"""Calls as JSON: recognised in a rendering whatever their keys, and read as models write them."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymnast.envs.rendering.calls import probes
from gymnast.envs.rendering.calls.json_payloads import JsonCalls, NameThenJson, find_json, find_path
from gymnast.envs.rendering.calls.payloads import Malformed, MarkedCall, PayloadMatch

NAME, ID, ARGUMENTS = probes.NAMES[0], probes.IDS[0], probes.ARGUMENTS[0]
INSIDE = json.dumps(ARGUMENTS)
PLAIN = JsonCalls(("name",), ("arguments",))
LISTED = JsonCalls(("function", "name"), ("function", "input"), ("id",), listed=True)
KEYED = JsonCalls((), ())
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
OBJECTS = st.dictionaries(st.text(), VALUES, max_size=3)
TOOLS = st.from_regex(r"[\w.\-]{1,12}", fullmatch=True)


def sample(region: str) -> MarkedCall:
    return MarkedCall(region, lambda arguments: None)


# --- Recognised


@pytest.mark.parametrize(
    ("written", "payload"),
    [
        (f'{{"name": "{NAME}", "arguments": {INSIDE}}}', PLAIN),
        (f'{{"name": "{NAME}", "arguments": {json.dumps(INSIDE)}}}', PLAIN),
        (f'{{"parameters": {INSIDE}, "tool_name": "{NAME}"}}',
         JsonCalls(("tool_name",), ("parameters",))),
        (f'[{{"id": "{ID}", "function": {{"name": "{NAME}", "input": {INSIDE}}}}}]', LISTED),
        (f'{{"{NAME}": {INSIDE}}}', KEYED),
        (f'{{"call": {{"{NAME}": {INSIDE}}}}}', JsonCalls((), ("call",))),
    ],
)  # fmt: skip
def test_objects_are_recognised_by_what_is_in_them(written: str, payload: JsonCalls) -> None:
    before = "<h>{not: json} [TOOL] "
    region = f"{before}{written}<e> {{}}"
    found = PayloadMatch(payload, len(before), len(before + written))
    assert JsonCalls.recognise(sample(region)) == found


@pytest.mark.parametrize(
    ("between", "separator"),
    [
        ("[ARGS]", "[ARGS]"),
        ("\n```json\n", "```json"),
        (f"[CALL_ID]{probes.IDS[0]}[ARGS]", "[CALL_ID]\ue0f0[ARGS]"),
        (":0<|args|>", ":\ue0f1<|args|>"),
        ("\n", ""),
    ],
)
def test_a_name_before_its_arguments_is_recognised(between: str, separator: str) -> None:
    region = f"<h>{NAME}{between}{INSIDE}<e>"
    expected = PayloadMatch(NameThenJson(separator), 3, len(region) - 3)
    assert NameThenJson.recognise(sample(region)) == expected
    assert JsonCalls.recognise(sample(region)) is None


@pytest.mark.parametrize(
    "region",
    [
        f"{NAME}(zqa='Zqone', zqb=7919)",
        f'{{"name": "{NAME}", "arguments": {{"zqa": "Zqone"}}}}',
        f'{{"arguments": {INSIDE}}}',
        f'{{"name": "{NAME}", "arguments": ',
        INSIDE,
        "",
    ],
)
def test_anything_else_is_not(region: str) -> None:
    assert JsonCalls.recognise(sample(region)) is None
    assert NameThenJson.recognise(sample(region)) is None


def test_a_path_leads_to_a_value_or_to_the_text_of_one() -> None:
    tree = {"a": {"b": "x", "c": '{"d": 1}'}}
    assert find_path(tree, "x") == ("a", "b")
    assert find_path(tree, {"d": 1}) == ("a", "c")
    assert find_path(tree, "y") is None
    assert find_path(["x"], "x") is None
    assert find_json("say [1] or {'x'} or {\"x\": [2]}.", "2") == ({"x": [2]}, 20, 30)


# --- Read


@given(TOOLS, OBJECTS, st.booleans())
def test_what_json_writes_is_read_back(name: str, arguments: dict[str, Any], as_text: bool) -> None:
    given_ = json.dumps(arguments) if as_text else arguments
    for payload, item in (
        (PLAIN, {"name": name, "arguments": given_, "more": 1}),
        (LISTED, [{"function": {"input": given_, "name": name}}]),
        (KEYED, {name: given_}),
    ):
        text = f" {json.dumps(item)}]}}"
        (call,), end = payload.read(text, 1, {}, "")
        assert (call.name, call.arguments, call.error) == (name, arguments, None)
        assert end == len(text) - 2


@given(TOOLS.filter(lambda name: "x" not in name), OBJECTS)
def test_a_name_and_json_are_read_back(name: str, arguments: dict[str, Any]) -> None:
    for separator in ("[ARGS]", ":\ue0f1<|args|>", ""):
        between = separator.replace("\ue0f1", "3")
        text = f"{name}{between} \n{json.dumps(arguments)}</call>"
        (call,), end = NameThenJson(separator).read(text, 0, {}, "</call>")
        assert (call.name, call.arguments, call.error) == (name, arguments, None)
        assert text[end:] == "</call>"


def test_ids_are_read_where_the_template_writes_them() -> None:
    text = '[{"id": "abc", "function": {"name": "f", "input": {}}}, '
    text += '{"id": 7, "function": {"name": "g", "input": {}}}, '
    text += '{"id": [], "function": {"name": "h", "input": null}}]'
    calls, _ = LISTED.read(text, 0, {}, "")
    assert [(call.id, call.name, call.arguments) for call in calls] == [
        ("abc", "f", {}),
        ("7", "g", {}),
        ("", "h", {}),
    ]
    payload = NameThenJson("[ID]\ue0f0[ARGS]")
    (call,), _ = payload.read("f[ID]x-1[ARGS]{}", 0, {}, "")
    assert (call.id, call.name) == ("x-1", "f")


def test_a_broken_item_does_not_spoil_its_neighbours() -> None:
    good = '{"function": {"name": "f", "input": {}}}'
    text = f'[{good}, 3, {{"function": {{"name": ""}}}}, {{"function": {{"name": "g"}}}}, {good}]'
    calls, end = LISTED.read(text, 0, {}, "")
    assert end == len(text)
    assert [call.error is None for call in calls] == [True, False, False, False, True]
    assert [call.name for call in calls] == ["f", "", "", "g", "f"]
    assert "not int" in (calls[1].error or "")
    assert "must be the tool's name" in (calls[2].error or "")
    assert "is missing" in (calls[3].error or "")


# --- Given twice


@pytest.mark.parametrize(
    ("arguments", "rule"),
    [
        ('{"a": 1, "a": 2}', "the argument 'a' is given twice"),
        ('{"a": 1, "a": 1}', "the argument 'a' is given twice"),
        ('{"a": 1, "b": 2, "\\u0061": 3}', "the argument 'a' is given twice"),
        ('{"o": {"b": 1, "b": 2}}', "the element 'b' is given twice"),
        ('{"o": [[{"b": 1, "b": {}}]]}', "the element 'b' is given twice"),
    ],
)
def test_an_argument_given_twice_is_malformed(arguments: str, rule: str) -> None:
    """In the words of markup: `test_parameters.py`."""
    good = '{"function": {"name": "g", "input": {"b": 1}}}'
    for written in (arguments, json.dumps(arguments)):
        text = f'[{{"function": {{"name": "f", "input": {written}}}}}, {good}]'
        (bad, other), end = LISTED.read(text, 0, {}, "")
        assert (bad.name, bad.arguments, bad.error) == ("f", {}, f"at character 0: {rule}")
        assert (other.name, other.arguments, other.error) == ("g", {"b": 1}, None)
        assert end == len(text)
        for payload, text in (
            (PLAIN, f'{{"name": "f", "arguments": {written}}}'),
            (KEYED, f'{{"f": {written}}}'),
        ):
            ((call,), _) = payload.read(text, 0, {}, "")
            assert (call.name, call.arguments, call.error) == ("f", {}, f"at character 0: {rule}")
        with pytest.raises(Malformed) as caught:
            NameThenJson("[ARGS]").read(f"f[ARGS]{written}", 0, {}, "")
        assert (str(caught.value), caught.value.name) == (rule, "f")


@pytest.mark.parametrize(
    ("payload", "text", "key"),
    [
        (PLAIN, '{"name": "f", "name": "g", "arguments": {}}', "name"),
        (PLAIN, '{"name": "f", "arguments": {"a": 1}, "arguments": {}}', "arguments"),
        (LISTED, '[{"function": {"name": "f", "input": {}, "input": {}}}]', "input"),
        (LISTED, '[{"id": "1", "id": "2", "function": {"name": "f", "input": {}}}]', "id"),
        (KEYED, '{"f": {"a": 1}, "f": {"a": 2}}', "f"),
    ],
)
def test_a_key_of_the_call_given_twice_is_malformed(
    payload: JsonCalls, text: str, key: str
) -> None:
    ((call,), end) = payload.read(text, 0, {}, "")
    assert (call.arguments, end) == ({}, len(text))
    assert f"the key '{key}' is given twice" in str(call.error)


@given(OBJECTS, st.lists(st.text(), min_size=1, max_size=4), VALUES, st.data())
def test_a_call_is_malformed_exactly_if_a_key_repeats(
    inner: dict[str, Any], keys: list[str], value: Any, data: st.DataObject
) -> None:
    written = ", ".join(
        f"{json.dumps(key, ensure_ascii=data.draw(st.booleans()))}: {json.dumps(value)}"
        for key in keys
    )
    inside = {"deep": [inner, "HERE"]} if data.draw(st.booleans()) else "HERE"
    arguments = json.dumps(inside).replace('"HERE"', f"{{{written}}}")
    ((call,), _) = PLAIN.read(f'{{"name": "f", "arguments": {arguments}}}', 0, {}, "")
    assert (call.error is not None) == (len(set(keys)) < len(keys))
    assert (call.arguments == {}) == (call.error is not None)


def test_repeated_keys_are_found_in_linear_time() -> None:
    """Comparing each key with all others would take hours."""
    keys = ", ".join(f'"{number}": 1' for number in range(300_000))
    text = f'{{"name": "f", "arguments": {{{keys}, "299999": 2}}}}'
    ((call,), _) = PLAIN.read(text, 0, {}, "")
    assert "'299999' is given twice" in str(call.error)


# --- Malformed


@pytest.mark.parametrize(
    ("payload", "text", "rule", "name"),
    [
        (PLAIN, '{"name": "f", "argu', "ends inside the JSON", ""),
        (PLAIN, '{"name": "f" "arguments": {}}', "',' delimiter", ""),
        (PLAIN, '{"name": "f", "arguments": {"a": NaN}}', "NaN is not JSON", ""),
        (PLAIN, '{"name": "f", "arguments": {"a": [1e999]}}', "too large a number", ""),
        (PLAIN, "[" * 100_000, "nested too deeply", ""),
        (PLAIN, '{"name": "f", "arguments": ' + "9" * 5000 + "}", "not JSON", ""),
        (NameThenJson("[ARGS]"), "f{}", r"followed by '\[ARGS\]' and JSON", ""),
        (NameThenJson("[ARGS]"), "[ARGS]{}", "must begin with the tool's name", ""),
        (NameThenJson("[ARGS]"), "say f[ARGS]{}", "must begin with the tool's name", ""),
        (NameThenJson("[ARGS]"), 'f[ARGS]{"a": ', "ends inside the JSON", "f"),
        (NameThenJson("[ARGS]"), "f[ARGS][1]", "must be a JSON object, not list", "f"),
        (NameThenJson("[ARGS]"), "f" * 1000 + "[ARGS]{}", "must be followed by", ""),
    ],
)  # fmt: skip
def test_a_broken_rule_says_where(payload: Any, text: str, rule: str, name: str) -> None:
    with pytest.raises(Malformed, match=rule) as caught:
        payload.read(text, 0, {}, "")
    assert 0 <= caught.value.position <= len(text)
    assert caught.value.name == name


def test_an_object_begins_with_one_of_the_keys() -> None:
    for text in ('{"name":', ' [ {\n "arguments" :', '{"name": 1'):
        assert PLAIN.begins(text.lstrip(), 0)
    for text in ('{"other":', "{name:", "name", "", '{"name"', '[["name":', "{}"):
        assert not PLAIN.begins(text, 0)
    assert not KEYED.begins('{"f": {}}', 0)
    assert not NameThenJson("[ARGS]").begins("f[ARGS]{}", 0)


PIECES = st.sampled_from(
    [
        "{",
        "}",
        "[",
        "]",
        '"name"',
        '"f"',
        ":",
        ",",
        '"arguments"',
        "1",
        "[ARGS]",
        "f",
        " ",
        "\n",
        "\\",
    ]
)


@given(st.lists(PIECES, max_size=20).map("".join))
def test_torn_json_is_read_or_malformed(text: str) -> None:
    for payload in (PLAIN, LISTED, KEYED, NameThenJson("[ARGS]"), NameThenJson("")):
        try:
            calls, end = payload.read(text, 0, {}, "")
        except Malformed as error:
            assert 0 <= error.position <= len(text)
        else:
            assert 0 < end <= len(text)
            assert all(call.error is not None or call.name for call in calls)
