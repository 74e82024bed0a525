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
from gymnast.envs.environment.rows import prompt_of
from gymnast.envs.records.episode import CallRecord, Episode
from gymnast.envs.tools.marks import tool
from gymnast.errors import ConfigError
from gymnast.types import Message

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


# Shown in the prompt as worked turns; never asked.
WORKED = (
    Problem(13, 4, "multiply"),
    Problem(21, 17, "add"),
    Problem(6, 45, "multiply"),
    Problem(58, 30, "add"),
)


class Arithmetic(Environment):
    """Answer a question about two integers, with a calculator at hand.

    The reward is the highest of these that was reached:

        0.2   a tool call that ran
        0.6   the right call: the right tool with both operands, in either order
        1.0   the right final answer: the last number in the text of the last turn is the answer

    `metrics` gives each part as 0 or 1: `call_ran`, `right_call`, `right_answer`. For rows without
    `a`, `b` and `operation` the right call is one that returned the answer.

    Args:
        worked_turns: How many worked examples the prompt shows before the question, 0 to 4: each
            a question, the call, its result and the answer.
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
        super().__init__(*arguments, **settings)
        for name, value in (
            ("worked_turns", worked_turns),
            ("min_operand", min_operand),
            ("max_operand", max_operand),
        ):
            if not isinstance(value, int):
                raise ConfigError(f"Arithmetic: {name} must be a whole number, got {value!r}.")
        if not 0 <= worked_turns <= len(WORKED):
            raise ConfigError(
                f"Arithmetic: worked_turns must be 0 to {len(WORKED)}, got {worked_turns!r}."
            )
        if max_operand - min_operand < 2:  # else every question could be a worked one
            raise ConfigError(
                "Arithmetic: max_operand must be at least min_operand + 2, got "
                f"min_operand={min_operand!r}, max_operand={max_operand!r}."
            )
        self.worked = WORKED[:worked_turns]
        self.min_operand = min_operand
        self.max_operand = max_operand

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
        worked = [{problem.a, problem.b} for problem in WORKED]
        while True:
            a, b = map(int, rng.integers(self.min_operand, self.max_operand + 1, size=2))
            if {a, b} not in worked:
                break
        problem = Problem(a, b, ("add", "multiply")[int(rng.integers(2))])
        return {"prompt": problem.question, **problem._asdict(), "answer": problem.answer}

    def setup(self, row: Mapping[str, Any]) -> list[Message] | None:
        """The worked turns, then the row's prompt."""
        question = prompt_of(row)
        examples = [
            message for i, problem in enumerate(self.worked) for message in worked_turn(problem, i)
        ]
        leading = [m for m in question[:1] if m["role"] == "system"]
        return [*leading, *examples, *question[len(leading) :]]

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


def worked_turn(problem: Problem, index: int) -> list[Message]:
    """One example as messages: the question, a call, its result, the answer."""
    arguments = {"a": problem.a, "b": problem.b}
    call = {"name": problem.operation, "arguments": arguments}
    call_id = f"worked{index:03}"  # nine letters and digits, as the strictest template wants
    return [
        {"role": "user", "content": problem.question},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": call_id, "type": "function", "function": call}],
        },
        {
            "role": "tool",
            "tool_call_id": call_id,
            "name": problem.operation,
            "content": str(problem.answer),
        },
        {"role": "assistant", "content": f"The answer is {problem.answer}."},
    ]


def last_number(text: str) -> Decimal | None:
    """The last number in a text, or None: 1150 in "It is 23 x 50 = 1,150."."""
    numbers = _NUMBER.findall(text)
    return Decimal(numbers[-1].replace(",", "")) if numbers else None


def _is_right(record: CallRecord, row: Mapping[str, Any], answer: Decimal | None) -> bool:
    if any(row.get(name) is None for name in ("a", "b", "operation")):
        return answer is not None and Decimal(record.result) == answer
    given = sorted(record.arguments.values())
    return record.call.name == row["operation"] and given == sorted((row["a"], row["b"]))
