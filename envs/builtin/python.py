"""Python: a question, and a Python session to find the answer with."""

import re
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import numpy as np

from gymnast.envs.boxes.box import in_words
from gymnast.envs.builtin.arithmetic import last_number
from gymnast.envs.environment.environment import Environment
from gymnast.envs.records.assistant import call
from gymnast.envs.records.episode import Episode
from gymnast.envs.tools.marks import tool
from gymnast.errors import DataError
from gymnast.sandboxes.contract.spec import SandboxSpec

_END = " .!*`\"')]"


class Python(Environment):
    """Answer a question with a Python session at hand, which keeps its variables.

    The reward is 1.0 if the last turn's text gives the row's `answer`: if that is a number, the
    last number in the text must equal it; otherwise the text must end with it, up to case and
    closing punctuation. Rows have `prompt` and `answer`, and may have `solution`: code that finds
    the answer, for demonstrations. Without rows, the environment asks for sums and counts that take
    a program.

    `metrics` gives `right_answer` (0 or 1) and `ran_code` (1 if some code ended without an error).
    """

    sandbox_spec: ClassVar[SandboxSpec | None] = SandboxSpec(timeout_s=10.0)

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._ran = False

    @tool(max_output_tokens=400)
    async def python(self, code: str) -> str:
        """Run Python code and return what it prints. Variables are kept.

        Args:
            code: Any number of statements; the value of a last expression is printed.
        """
        result = await self.sandbox.apython(code)
        self._ran = self._ran or result.verdict == "ok"
        return in_words(result)

    def sample_row(self, rng: np.random.Generator) -> Mapping[str, Any]:
        """A row of `rows` if there are any, else a question about a range of numbers."""
        if self.rows is not None:
            row: Mapping[str, Any] = super().sample_row(rng)
            return row
        what, (among, code) = list(_QUESTIONS.items())[int(rng.integers(len(_QUESTIONS)))]
        first = int(rng.integers(1, 50))
        last = first + int(rng.integers(10, 100))
        prompt = f"{what} from {first} to {last}, both included?"
        numbers = range(first, last + 1)
        solution = f"numbers = {numbers}\n{code}"
        return {"prompt": prompt, "answer": among(numbers), "solution": solution}

    def setup(self, row: Mapping[str, Any]) -> None:
        """Require an answer to compare with."""
        self._ran = False
        if row.get("answer") is None:
            raise DataError(f"Python: the row {dict(row)!r:.300} has no 'answer'.")

    def solve(self, row: Mapping[str, Any]) -> list[Any] | None:
        """The row's `solution` in the session, then the answer."""
        if row.get("solution") is None:
            return None
        return [call("python", code=row["solution"]), f"The answer is {row['answer']}."]

    def reward(self, episode: Episode) -> float:
        """Whether the answer is right; see the class."""
        return float(gives(episode.answer, str(episode.row["answer"])))

    def metrics(self, episode: Episode) -> dict[str, float]:
        """See the class."""
        return {"right_answer": self.reward(episode), "ran_code": float(self._ran)}


def gives(text: str, expected: str) -> bool:
    """Whether a text ends in the expected answer; see `Python`."""
    number = last_number(expected)
    if number is not None and _is_number(expected):
        return last_number(text) == number
    wanted = " ".join(expected.split()).rstrip(_END).casefold()
    given = " ".join(text.split()).rstrip(_END).casefold()
    before = given[: len(given) - len(wanted)][-1:]
    return bool(wanted) and given.endswith(wanted) and not before.isalnum()


def _is_number(text: str) -> bool:
    return re.fullmatch(r"[-+]?[\d,]+(\.\d+)?", text.strip()) is not None


def _is_prime(number: int) -> bool:
    return number > 1 and all(number % d for d in range(2, int(number**0.5) + 1))


# Each with how it is answered here, and by code in a session that has `numbers`.
_QUESTIONS: dict[str, tuple[Callable[[range], int], str]] = {
    "What is the sum of the numbers": (sum, "sum(numbers)"),
    "What is the sum of the squares of the numbers": (
        lambda among: sum(n * n for n in among),
        "sum(n * n for n in numbers)",
    ),
    "How many primes are among the numbers": (
        lambda among: sum(map(_is_prime, among)),
        "sum(n > 1 and all(n % d for d in range(2, n)) for n in numbers)",
    ),
    "What is the sum of all digits of the numbers": (
        lambda among: sum(sum(map(int, str(n))) for n in among),
        "sum(int(digit) for n in numbers for digit in str(n))",
    ),
}
