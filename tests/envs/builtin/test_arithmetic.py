"""Arithmetic: its rows, its worked turns, and a reward that cannot be tricked."""

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymnast.envs import Renderer, make
from gymnast.envs.builtin.arithmetic import Arithmetic, last_number
from gymnast.errors import ConfigError, DataError

ROW = {"prompt": "What is 6 times 7?", "a": 6, "b": 7, "operation": "multiply", "answer": 42}


def test_rows_are_questions_with_their_answers() -> None:
    env, rng = Arithmetic(), np.random.default_rng(0)
    rows = [env.sample_row(rng) for _ in range(2000)]
    for row in rows:
        sign = {"add": "plus", "multiply": "times"}[row["operation"]]
        assert row["prompt"] == f"What is {row['a']} {sign} {row['b']}?"
        a, b = row["a"], row["b"]
        assert row["answer"] == (a + b if row["operation"] == "add" else a * b)
    operands = [row[name] for row in rows for name in ("a", "b")]
    assert (min(operands), max(operands)) == (2, 99)
    assert 800 < sum(row["operation"] == "add" for row in rows) < 1200


def test_equal_seeds_give_equal_rows() -> None:
    env = Arithmetic()
    env.reset(seed=4)
    first = env.row
    env.reset(seed=5)
    assert env.row != first
    env.reset(seed=4)
    assert env.row == first


def test_the_prompt_carries_one_worked_turn_for_each_operation() -> None:
    env = Arithmetic(system_prompt="Use a tool.")
    env.reset(options={"row": ROW})
    roles = [message["role"] for message in env.messages]
    assert roles == ["system", *["user", "assistant", "tool", "assistant"] * 2, "user"]
    functions = [m["tool_calls"][0]["function"] for m in env.messages if "tool_calls" in m]
    assert {function["name"] for function in functions} == {"add", "multiply"}
    for start in (1, 5):
        question, said, result, answer = env.messages[start : start + 4]
        function = said["tool_calls"][0]["function"]
        a, b = function["arguments"]["a"], function["arguments"]["b"]
        word, value = ("plus", a + b) if function["name"] == "add" else ("times", a * b)
        assert question["content"] == f"What is {a} {word} {b}?"
        assert result["content"] == str(value)
        assert answer["content"] == f"The answer is {value}."
    assert env.messages[-1]["content"] == "What is 6 times 7?"


def test_where_there_is_one_turn_worked_turns_answer_at_once(play: Callable[..., Any]) -> None:
    env = Arithmetic(max_turns=1)
    (outcome,) = play(env, said("The answer is 42."), row=ROW)
    assert outcome.reward == 1.0
    assert [m["role"] for m in env.messages] == [*["user", "assistant"] * 3]
    assert all(m["content"].startswith("The answer is") for m in env.messages[1::2])


def test_worked_turns_are_optional_and_a_system_message_stays_first() -> None:
    env = Arithmetic(worked_turns=1)
    prompt = [{"role": "system", "content": "Own."}, {"role": "user", "content": "What?"}]
    env.reset(options={"row": {"prompt": prompt, "answer": 1}})
    assert [m["role"] for m in env.messages] == [
        *["system", "user", "assistant", "tool", "assistant", "user"]
    ]
    env = Arithmetic(worked_turns=0)
    env.reset(options={"row": ROW})
    assert env.messages == [{"role": "user", "content": ROW["prompt"]}]


def said(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


@pytest.mark.parametrize(
    ("named", "answer", "reward"),
    [
        ([], "I do not know.", 0.0),
        ([], "The answer is 42.", 1.0),
        ([], "1 2 3 41 42 43", 0.0),
        ([], "42, or 43", 0.0),
        ([], "420", 0.0),
        ([], "4.2", 0.0),
        ([("multiply", {"a": 6})], "No.", 0.0),
        ([("divide", {"a": 6, "b": 7})], "No.", 0.0),
        ([("add", {"a": 6, "b": 7})], "13", 0.2),
        ([("multiply", {"a": 6, "b": 8})], "48", 0.2),
        ([("multiply", {"a": 21, "b": 2})], "No.", 0.2),
        ([("multiply", {"a": 6, "b": 7})], "No.", 0.6),
        ([("multiply", {"a": "7", "b": "6"})], "", 0.6),
        ([("multiply", {"a": 6, "b": 7})], "The answer is 42.", 1.0),
        ([("add", {"a": 1, "b": 1})], "It is **42**", 1.0),
    ],
)
def test_the_reward_is_the_highest_part_reached(
    named: list[Any],
    answer: str,
    reward: float,
    calls: Callable[..., Any],
    play: Callable[..., Any],
) -> None:
    messages = [calls(*named), said(answer)] if named else [said(answer)]
    last = play(Arithmetic(), *messages, row=ROW)[-1]
    assert last.reward == reward
    metrics = last.info["metrics"]
    parts = 0.2 * metrics["call_ran"], 0.6 * metrics["right_call"], metrics["right_answer"]
    assert max(parts) == reward


def test_a_dataset_with_prompt_and_answer_is_enough(
    calls: Callable[..., Any], play: Callable[..., Any]
) -> None:
    row = {"prompt": "Six sevens?", "answer": "42"}
    right = calls(("multiply", {"a": 6, "b": 7}))
    wrong = calls(("multiply", {"a": 6, "b": 8}))
    assert play(Arithmetic(), right, said("No."), row=row)[-1].reward == 0.6
    assert play(Arithmetic(), wrong, said("No."), row=row)[-1].reward == 0.2
    assert play(Arithmetic(), said("42"), row=row)[-1].reward == 1.0
    env = Arithmetic(rows=[row])
    env.reset()
    assert env.row == row


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("23 x 50 = 1,150.", 1150),
        ("-7", -7),
        ("3-4", 4),
        ("42.0", 42),
        ("1, 2", 2),
        ("a1 b2c", None),
        ("", None),
    ],
)
def test_the_last_number_of_a_text(text: str, number: int | None) -> None:
    assert last_number(text) == (None if number is None else Decimal(number))


@given(st.integers(), st.text())
def test_a_number_is_read_back(number: int, before: str) -> None:
    last_number(before)
    assert last_number(f"{before} {number}.") == Decimal(number)


def test_settings_out_of_range_are_errors() -> None:
    with pytest.raises(ConfigError, match=r"worked_turns must be a whole number >= 0, got -1"):
        Arithmetic(worked_turns=-1)
    with pytest.raises(ConfigError, match=r"max_operand must be at least min_operand, got"):
        Arithmetic(min_operand=5, max_operand=4)
    with pytest.raises(
        DataError, match=r"worked_turns is 3, but the number of different rows with a solution is 2"
    ):
        Arithmetic(min_operand=5, max_operand=5, worked_turns=3).reset()


def test_an_episode_of_tokens(renderer: Renderer) -> None:
    """The same through tokens: one call, its result, the answer."""
    env = make("gymnast/Arithmetic-v0", renderer)
    env.reset(options={"row": ROW})
    call = '<tool_call>\n{"name": "multiply", "arguments": {"a": 6, "b": 7}}\n</tool_call>'
    tokenizer = renderer.tokenizer
    observation = env.step(tokenizer.encode(f"{call}<|im_end|>"))[0]
    assert "42" in tokenizer.decode(observation)
    assert env.step(tokenizer.encode("The answer is 42.<|im_end|>"))[1] == 1.0
