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
