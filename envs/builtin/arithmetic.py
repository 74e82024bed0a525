"""Arithmetic: the smallest built-in environment, on which the first training run learns.

A question such as "What is 17 times 23?", two tools (add, multiply), a short answer. Rows are drawn
by a seeded generator, or come from a dataset with the columns `prompt` and `answer` and optionally
`a`, `b` and `operation` ("add" or "multiply").
"""

import re
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np

from gymnast.envs.environment.environment import Environment
from gymnast.envs.records.assistant import call
from gymnast.envs.records.episode import CallRecord, Episode
from gymnast.envs.tools.marks import tool
from gymnast.errors import ConfigError

WORDS = {"add": "plus", "multiply": "times"}
_NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?!\w)")


class Problem(NamedTuple):
    """A question: two operands and an operation."""

    a: int
    b: int
    operation: str

    @property
    def answer(self) -> int:
        """The right answer."""
        return self.a + self.b if self.operation == "add" else self.a * self.b

    @property
    def question(self) -> str:
        """The text of the question."""
        return f"What is {self.a} {WORDS[self.operation]} {self.b}?"


class Arithmetic(Environment):
    """Answer a question about two integers, with a calculator at hand.

    The reward is the highest of these that was reached:

        0.2   a tool call that ran
        0.6   the right call: the right tool with both operands, in either order
        1.0   the right final answer: the last number in the text of the last turn is the answer

    `metrics` gives each part as 0 or 1: `call_ran`, `right_call`, `right_answer`. For rows without
    `a`, `b` and `operation` the right call is one that returned the answer.

    Args:
        worked_turns: As for `Environment`; by default, the prompt shows one question for each tool
            or, where `max_turns` is 1, two answers.
        min_operand: The smallest operand of generated rows.
        max_operand: The largest operand of generated rows.
        **settings: As for `Environment`.
    """

    def __init__(
        self,
        *arguments: Any,
        worked_turns: int = 2,
        min_operand: int = 2,
        max_operand: int = 99,
        **settings: Any,
    ) -> None:
        super().__init__(*arguments, worked_turns=worked_turns, **settings)
        for name, value in (("min_operand", min_operand), ("max_operand", max_operand)):
            if not isinstance(value, int):
                raise ConfigError(f"Arithmetic: {name} must be a whole number, got {value!r}.")
        if max_operand < min_operand:
            raise ConfigError(
                "Arithmetic: max_operand must be at least min_operand, got "
                f"min_operand={min_operand!r}, max_operand={max_operand!r}."
            )
        self.min_operand = min_operand
        self.max_operand = max_operand
        if self.rows is not None and self.worked_rows is None:  # they may not say what to call
            rng = np.random.default_rng(0)
            self.worked_rows = [self._question(rng) for _ in range(8 * (worked_turns + 1))]

    @tool
    def add(self, a: int, b: int) -> int:
        """Add two integers."""
        return a + b

    @tool
    def multiply(self, a: int, b: int) -> int:
        """Multiply two integers."""
        return a * b

    def sample_row(self, rng: np.random.Generator) -> Mapping[str, Any]:
        """A row of `rows` if there are any, else a question with operands drawn uniformly."""
        if self.rows is not None:
            row: Mapping[str, Any] = super().sample_row(rng)
            return row
        return self._question(rng)

    def _question(self, rng: np.random.Generator) -> Mapping[str, Any]:
        a, b = map(int, rng.integers(self.min_operand, self.max_operand + 1, size=2))
        problem = Problem(a, b, ("add", "multiply")[int(rng.integers(2))])
        return {"prompt": problem.question, **problem._asdict(), "answer": problem.answer}

    def solve(self, row: Mapping[str, Any]) -> list[Any] | None:
        """The right call, then the answer; None for rows that do not say what to call.

        The answer alone where there is one turn.
        """
        if any(row.get(name) is None for name in ("a", "b", "operation")):
            return None
        answer = f"The answer is {row['answer']}."
        if self.max_turns == 1:
            return [answer]
        return [call(row["operation"], a=row["a"], b=row["b"]), answer]

    def reward(self, episode: Episode) -> float:
        """The highest part reached; see the class."""
        reached = self.metrics(episode)
        parts = {"call_ran": 0.2, "right_call": 0.6, "right_answer": 1.0}
        return max(value * reached[name] for name, value in parts.items())

    def metrics(self, episode: Episode) -> dict[str, float]:
        """Each part of the reward, as 0 or 1."""
        ran = [record for record in episode.calls if record.error is None]
        answer = last_number(str(episode.row.get("answer", "")))
        answered = answer is not None and last_number(episode.answer) == answer
        return {
            "call_ran": float(bool(ran)),
            "right_call": float(any(_is_right(record, episode.row, answer) for record in ran)),
            "right_answer": float(answered),
        }


def last_number(text: str) -> Decimal | None:
    """The last number in a text, or None: 1150 in "It is 23 x 50 = 1,150."."""
    numbers = _NUMBER.findall(text)
    return Decimal(numbers[-1].replace(",", "")) if numbers else None


def _is_right(record: CallRecord, row: Mapping[str, Any], answer: Decimal | None) -> bool:
    if any(row.get(name) is None for name in ("a", "b", "operation")):
        return answer is not None and Decimal(record.result) == answer
    given = sorted(record.arguments.values())
    return record.call.name == row["operation"] and given == sorted((row["a"], row["b"]))
