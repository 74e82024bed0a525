"""What counts as a reward that tests have written."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymnast.envs.builtin.harbor.verifier import read_json, read_text


@pytest.mark.parametrize(("text", "reward"), [("1", 1.0), ("0.25\n", 0.25), (" -3e-1 ", -0.3)])
def test_a_text_is_one_number(text: str, reward: float) -> None:
    verdict = read_text(text.encode())
    assert (verdict.reward, verdict.problem) == (reward, None)


@pytest.mark.parametrize(
    "text", [b"", b"one", b"nan", b"inf", b"1 2", b"\xff", b"1e999", b"1" * 400, b"-" + b"9" * 5000]
)
def test_what_is_no_number_is_no_reward(text: bytes) -> None:
    verdict = read_text(text)
    assert verdict.reward == 0.0 and verdict.problem


def test_the_number_called_reward_is_the_reward_and_others_stand_beside_it() -> None:
    verdict = read_json(b'{"reward": 0.5, "lines": 12}')
    assert (verdict.reward, verdict.parts, verdict.others) == (0.5, {}, {"lines": 12.0})
    assert read_json(b"0.5").reward == 0.5


def test_without_it_the_reward_is_the_mean_and_each_number_a_part() -> None:
    verdict = read_json(b'{"right": 1, "short": 0}')
    assert (verdict.reward, verdict.parts) == (0.5, {"right": 0.5, "short": 0.0})


@pytest.mark.parametrize(
    "text",
    [
        *("", "{", "{}", "[1]", '{"reward": "1"}', '{"reward": NaN}', '{"a": 1e999}', "null"),
        *(f'{{"reward": {10**400}}}', f'{{"reward": 1, "a": -{10**400}}}', f'{{"a": {10**400}}}'),
        *(str(10**400), f"[{10**400}]", '{"reward": 1' + "0" * 5000 + "}"),
    ],
    ids=lambda text: text[:20],
)
def test_what_holds_no_finite_numbers_is_no_reward(text: str) -> None:
    verdict = read_json(text.encode())
    assert verdict.reward == 0.0 and verdict.problem


LONG = st.tuples(st.integers(-9, 9), st.integers(300, 4000)).map(lambda n: n[0] * 10 ** n[1])
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | LONG | st.floats() | st.text(max_size=5),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text(max_size=5), below),
    max_leaves=6,
)


@given(st.binary(max_size=30) | ANYTHING.map(lambda value: json.dumps(value).encode()))
def test_whatever_is_written_gives_a_finite_reward(data: bytes) -> None:
    for read in (read_text, read_json):
        verdict: Any = read(data)
        assert math.isfinite(verdict.reward)
        assert verdict.problem is None or verdict.reward == 0.0
