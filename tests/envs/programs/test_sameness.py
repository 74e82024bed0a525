"""When two messages are the same: each rule, by its name, and what is another message."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymnast.envs.programs.sameness import canonical, changes, fingerprint, with_ids

CALL = {
    "id": "c1",
    "type": "function",
    "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'},
}
KEPT: dict[str, Any] = {
    "role": "assistant",
    "content": "Adding.",
    "reasoning_content": "I add.",
    "tool_calls": [CALL],
}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


def called(**changed: Any) -> dict[str, Any]:
    function = {**CALL["function"], **{k: v for k, v in changed.items() if k != "id"}}  # type: ignore[dict-item]
    return {**KEPT, "tool_calls": [{**CALL, "id": changed.get("id", "c1"), "function": function}]}


def rules(kept: dict[str, Any], sent: dict[str, Any]) -> set[str] | None:
    """The rules by which they are the same; None if they are not."""
    if fingerprint(kept) != fingerprint(sent):
        return None
    found = changes(kept, sent)
    return None if found is None else set(found)


@pytest.mark.parametrize(
    ("sent", "by"),
    [
        (KEPT, set()),
        (dict(reversed(KEPT.items())), set()),
        (called(arguments='{"b": 2, "a": 1}'), {"arguments"}),
        (called(arguments='{"a":1,"b":2}'), {"arguments"}),
        (called(arguments='{"a": 1.0, "b": 2}'), {"arguments"}),
        (called(arguments={"b": 2, "a": 1}), {"arguments"}),
        (called(arguments={"a": 1, "b": 2}), set()),
        ({**KEPT, "content": " Adding.\n"}, {"content"}),
        ({**KEPT, "content": [{"type": "text", "text": "Adding."}]}, {"content"}),
        ({k: v for k, v in KEPT.items() if k != "reasoning_content"}, {"reasoning"}),
        ({**KEPT, "reasoning_content": ""}, {"reasoning"}),
        ({**KEPT, "reasoning_content": None}, {"reasoning"}),
        (called(id="other"), {"ids"}),
        (called(id=""), {"ids"}),
        ({**KEPT, "audio": None, "name": "agent"}, {"fields"}),
        ({**called(id="x"), "content": "Adding. "}, {"content", "ids"}),
    ],
)
def test_an_answer_that_comes_back_changed_harmlessly(sent: dict[str, Any], by: set[str]) -> None:
    assert rules(KEPT, sent) == by


@pytest.mark.parametrize("empty", [None, "", [], [{"type": "text", "text": ""}]])
def test_no_content_may_be_written_in_several_ways(empty: Any) -> None:
    kept = {**KEPT, "content": ""}
    assert rules(kept, {**kept, "content": empty}) == ({"content"} if empty != "" else set())
    missing = {key: value for key, value in kept.items() if key != "content"}
    assert rules(kept, missing) == {"content"}


@pytest.mark.parametrize(
    "sent",
    [
        {**KEPT, "content": "Adding"},
        {**KEPT, "content": ""},
        {**KEPT, "role": "user"},
        {**KEPT, "reasoning_content": "I subtract."},
        {**KEPT, "tool_calls": []},
        {**KEPT, "tool_calls": [CALL, CALL]},
        called(name="sub"),
        called(arguments='{"a": 1}'),
        called(arguments='{"a": "1", "b": 2}'),
        called(arguments='{"a": true, "b": 2}'),
        called(arguments='{"a": 1, "b": 2'),
    ],
)
def test_another_message(sent: dict[str, Any]) -> None:
    assert rules(KEPT, sent) is None


@pytest.mark.parametrize(
    ("kept", "sent", "same"),
    [
        ({"role": "user", "content": "a"}, {"role": "user", "content": "a", "name": ""}, True),
        ({"role": "user", "content": "a"}, {"role": "user", "content": "a "}, False),
        ({"role": "user", "content": "a"}, {"role": "system", "content": "a"}, False),
        ({"role": "user", "content": "a"}, {"role": "user", "content": "a", "name": "b"}, False),
    ],
)
def test_what_was_given_is_the_same_only_if_it_is_sent_as_it_was(
    kept: dict[str, Any], sent: dict[str, Any], same: bool
) -> None:
    assert (fingerprint(kept) == fingerprint(sent)) is same


def test_results_name_their_calls_by_ids_that_may_change_together() -> None:
    result = {"role": "tool", "content": "3", "tool_call_id": "c2"}
    renamed = {**result, "tool_call_id": "y"}
    assert fingerprint(result, ("c1", "c2")) == fingerprint(renamed, ("x", "y"))
    assert fingerprint(result, ("c1", "c2")) != fingerprint(renamed, ("y", "x"))
    assert fingerprint(result, ("c1", "c2")) != fingerprint(renamed, ("c1", "c2"))
    assert changes(result, renamed) == frozenset({"ids"})
    assert with_ids(renamed, {"x": "c1", "y": "c2"}) == result  # type: ignore[arg-type]


@given(st.dictionaries(st.text(), JSON), st.randoms())
def test_arguments_are_the_same_in_any_order_and_as_text_or_object(
    arguments: dict[str, Any], random: Any
) -> None:
    items = list(arguments.items())
    random.shuffle(items)
    for text in (json.dumps(dict(items)), json.dumps(dict(items), indent=2, ensure_ascii=False)):
        assert canonical(text) == canonical(arguments)
        kept, sent = called(arguments=arguments), called(arguments=text)
        assert fingerprint(kept) == fingerprint(sent)


@given(JSON, JSON)
def test_arguments_of_other_values_are_others(one: Any, other: Any) -> None:
    if json.loads(json.dumps(one)) != json.loads(json.dumps(other)):
        assert canonical({"a": one}) != canonical({"a": other})
