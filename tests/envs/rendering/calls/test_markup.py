"""Markup as a pattern, and where two renderings may be cut apart."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymnast.envs.rendering.calls import probes
from gymnast.envs.rendering.calls.markup import (
    common_end,
    common_start,
    generalised,
    pattern,
    shown,
)

FIRST, SECOND = probes.NAMES
ID = probes.IDS[0]


@pytest.mark.parametrize(
    ("written", "also"),
    [
        (f"functions.{FIRST}:0<|args|>", "functions.get_weather:12<|args|>"),
        (f"<call id={ID}>", "<call id=functions.f:0>"),
        (f"to={SECOND}<|message|>", "to=a.b-c<|message|>"),
        ("<tool_call>", "<tool_call>"),
        ("[TOOL]\n\n{", "[TOOL] {"),
        ("<call>\n<name", "<call><name"),
        ("<call><name>x", "<call>\n<name> x"),
        ('<call name="', '<call\n name="'),
        ("a.b*", "a.b*"),
    ],
)
def test_what_differs_from_call_to_call_may_be_anything(written: str, also: str) -> None:
    found = pattern(generalised(written))
    assert found.fullmatch(written)
    assert found.fullmatch(also)


def test_the_id_in_markup_is_its_group() -> None:
    found = pattern(generalised(f"[ID]{ID}[ARGS]")).fullmatch("[ID]call-7[ARGS]")
    assert found is not None
    assert found[1] == "call-7"


@pytest.mark.parametrize(
    "other", ["functionsxf:0", "functions.f:", "functions.:0", "functions.f g:0"]
)
def test_the_rest_is_matched_to_the_letter(other: str) -> None:
    assert not pattern(generalised(f"functions.{FIRST}:0")).fullmatch(other)


def test_two_words_need_white_space_between_them() -> None:
    assert not pattern('<call name="').fullmatch('<callname="')


@pytest.mark.parametrize("markup", ["h2>", "v1.5", "2x", "a1b", "<|eot_1|>"])
def test_a_number_that_is_part_of_a_word_stays(markup: str) -> None:
    assert generalised(markup) == markup


def test_markup_is_shown_with_words_for_what_differs() -> None:
    assert shown(generalised(f"{FIRST}:0 {ID}")) == "TOOL:0 ID"


def test_one_key_may_stand_for_any() -> None:
    close = generalised("</") + "\ue0f3>"
    assert pattern(close).fullmatch("</any-key>")
    assert pattern(close, "a.b").fullmatch("</a.b>")
    assert not pattern(close, "a.b").fullmatch("</axb>")


TEXT = st.text("ab<>[]|/ \n{}()", max_size=12)


@given(TEXT, TEXT)
def test_white_space_in_markup_is_any_white_space(before: str, after: str) -> None:
    markup = f"{before} {after}"
    assert pattern(markup).fullmatch(re.sub(r"\s+", "\n \t", markup.strip()))


@given(TEXT, TEXT, TEXT, st.sets(TEXT.filter(len), max_size=3))
def test_what_is_common_is_in_both_and_cuts_no_token(
    shared: str, first: str, second: str, added: set[str]
) -> None:
    start = common_start(shared + first, shared + second, added)
    assert (shared + first).startswith(start)
    assert (shared + second).startswith(start)
    end = common_end(first + shared, second + shared, added)
    assert (first + shared).endswith(end)
    assert (second + shared).endswith(end)


@pytest.mark.parametrize(
    ("text", "other", "start", "end"),
    [
        ("</call><next>x", "</call></calls>y", "</call>", ""),
        ("<call><f>x", "<call><g>y", "<call>", ""),
        ("</f></call>", "</g></call>", "", "</call>"),
        ("</call>", "</call><next>x", "</call>", ""),
        ("\n<call>", "</x>\n<call>", "", "\n<call>"),
        ("same", "same", "same", "same"),
        ("", "x", "", ""),
        ("x>>>", "y>>>", "", ">>>"),
    ],
)
def test_a_cut_leaves_brackets_whole(text: str, other: str, start: str, end: str) -> None:
    assert common_start(text, other) == start
    assert common_end(text, other) == end


def test_a_cut_leaves_tokens_whole() -> None:
    tokens = ("<|call|>", "<|calls|>", "||ab||")
    assert common_start("x||ab||y", "x||ab-", tokens) == "x"
    assert common_end("x||ab||y", "-ab||y", tokens) == "y"
    assert common_start("x||ab||y", "x||ab-") == "x||ab"
