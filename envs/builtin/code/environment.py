"""Code: write a Python function that hidden tests grade.

`rows.py` reads rows, `tasks.py` has tasks of Gymnast's own, and `grading.py` runs the tests.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from gymnast.envs.boxes.box import in_words
from gymnast.envs.builtin.code.grading import Grade, GradingLimits, grade
from gymnast.envs.builtin.code.rows import code_task
from gymnast.envs.builtin.code.tasks import LEVELS, WORKED, tasks
from gymnast.envs.environment.environment import Environment
from gymnast.envs.records.episode import Episode
from gymnast.envs.tools.definition import Tool
from gymnast.envs.tools.marks import tool
from gymnast.errors import ConfigError, UserCodeError
from gymnast.sandboxes.contract.spec import SandboxSpec
from gymnast.types import Message

_OPENING = re.compile(r"```[ \t]*+(\w*+)[^\n]*+\n")
_CLOSING = re.compile(r"\n[ \t]*+```")


class Code(Environment):
    """Write a Python function. The reward is the share of the hidden tests that it passes.

    Code is submitted with the tool `submit`, or in a fenced block of an answer. It can be tried
    out with the tool `python`. Rows are those of HumanEval or MBPP, or have the same fields;
    without rows, the environment has short tasks of its own, those of `level` 1 as easy as "the sum
    of a and b".

    The tests run in a box of their own, and only plain values pass between them and the code, so
    functions that take or return other objects, or change their arguments, cannot be graded.
    Each statement of HumanEval's `check` that judges the code and each entry of MBPP's `test_list`
    is a test; if `check` cannot be divided, it is a single one. A statement between tests that
    fails makes those after it fail. The code never supplies what it is compared with: a helper
    comes from the row's `code`, its `test_setup_code` or Python's library. `==` compares type and
    value; numbers of different types may be equal. Rows with a test that no code can fail are
    refused, and so are rows with a test that no code can pass: one that passes a lambda to the
    function, for example, or expects a date from it.

    `metrics` gives `solved` (1 where all tests passed), `loaded` (1 where the code ran and defines
    the function) and `submitted` (1 where there was any code).

    Args:
        level: The hardest level of Gymnast's own tasks, 1 to 3.
        worked_rows: As for `Environment`; by default, four short tasks that are never asked.
        offer: The tools that are offered, of "python" and "submit"; () for code in the answer only.
        call_timeout_s: Wall time of one call of the function in a test, in seconds.
        tests_timeout_s: Wall time of all tests of an episode, in seconds, without waits for boxes.
        **settings: Those of `Environment`.
    """

    sandbox_spec: ClassVar[SandboxSpec | None] = SandboxSpec(timeout_s=10.0)

    def __init__(
        self,
        *arguments: Any,
        level: int = 3,
        worked_rows: Sequence[Mapping[str, Any]] | None = None,
        offer: Sequence[str] = ("python", "submit"),
        call_timeout_s: float = 4.0,
        tests_timeout_s: float = 30.0,
        **settings: Any,
    ) -> None:
        if worked_rows is None:
            worked_rows = [task.row for task in WORKED]
        super().__init__(*arguments, worked_rows=worked_rows, **settings)
        if level not in LEVELS:
            raise ConfigError(f"Code: level must be 1, 2 or 3, got {level!r}.")
        if isinstance(offer, str) or any(name not in self.tool_definitions for name in offer):
            raise ConfigError(
                f"Code: offer must be a list of some of {', '.join(self.tool_definitions)}, got "
                f"{offer!r:.100}."
            )
        for name, value in (
            ("call_timeout_s", call_timeout_s),
            ("tests_timeout_s", tests_timeout_s),
        ):
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
                raise ConfigError(f"Code: {name} must be a number of seconds > 0, got {value!r}.")
        self._offer = offer
        self._own = tasks(level)
        self._submitted: str | None = None
        self._limits = GradingLimits(call_timeout_s, tests_timeout_s)

    @tool(max_output_tokens=400)
    async def python(self, code: str) -> str:
        """Run Python code and return what it prints. Variables are kept.

        Args:
            code: Any number of statements.
        """
        return in_words(await self.sandbox.apython(code))

    @tool(stop=True)
    def submit(self, code: str) -> str:
        """Hand in the final code, which ends the task.

        Args:
            code: Python that defines the function.
        """
        self._submitted = code
        return "Submitted."

    def tools_for(self, row: Mapping[str, Any]) -> list[Tool]:
        """Those of `offer`."""
        return [tool for tool in super().tools_for(row) if tool.name in self._offer]

    def sample_row(self, rng: np.random.Generator) -> Mapping[str, Any]:
        """A row of `rows` if there are any, else one of Gymnast's own tasks."""
        if self.rows is not None:
            row: Mapping[str, Any] = super().sample_row(rng)
            return row
        return self._own[int(rng.integers(len(self._own)))].row

    def setup(self, row: Mapping[str, Any]) -> list[Message]:
        """The task."""
        self._submitted = None
        self._grade = Grade(0, 1, False)
        self._task = code_task(row)
        return [{"role": "user", "content": self._task.question}]

    def solve(self, row: Mapping[str, Any]) -> list[str] | None:
        """The code that the row has, or that Gymnast's own tasks have, in an answer."""
        own = {task.question: task.solution for task in (*WORKED, *self._own)}
        code = own.get(row["prompt"]) if "prompt" in row else None
        code = code or row.get("code")  # MBPP
        if code is None and row.get("canonical_solution") is not None:  # HumanEval
            code = f"{row['prompt']}{row['canonical_solution']}"
        return None if code is None else [f"```python\n{code.rstrip()}\n```"]

    async def reward(self, episode: Episode) -> float:
        """The share of the tests that the code passes."""
        code = self._code(episode)
        self._grade = Grade(0, self._task.tests.total, False)
        if code.strip():
            self._grade = await self._graded(code)
        return self._grade.share

    def metrics(self, episode: Episode) -> dict[str, float]:
        """See the class."""
        result = self._grade
        return {
            "solved": float(result.total > 0 and result.passed == result.total),
            "loaded": float(result.loaded),
            "submitted": float(bool(self._code(episode).strip())),
        }

    async def _graded(self, code: str) -> Grade:
        task = self._task
        try:
            return await grade(
                task.tests,
                task.context,
                code,
                self.sandbox,
                self.open_box,
                self._limits,
            )
        except UserCodeError as error:  # name the row
            raise UserCodeError(
                "tests", self.row, f"{error} (row: {dict(self.row)!r:.500})"
            ) from None

    def _code(self, episode: Episode) -> str:
        if self._submitted is not None:
            return self._submitted
        return code_in(episode.answer, self._task.name)


def code_in(answer: str, name: str) -> str:
    """The code of an answer.

    It is the last fenced block that defines the function, else the last block that is not marked
    as another language, else, without any block, the whole answer. A block that is not closed
    goes on to the end.

    Args:
        answer: The text.
        name: The function.
    """
    fenced = fenced_blocks(answer)
    if not fenced:
        return answer
    blocks = [text for mark, text in fenced if mark.lower() in ("", "python", "py", "python3")]
    defining = [text for text in blocks if f"def {name}(" in text]
    return (defining or blocks or [""])[-1]


def fenced_blocks(answer: str) -> list[tuple[str, str]]:
    """The language and the text of each fenced block, in linear time."""
    fenced = []
    at, last_line = 0, answer.rfind("\n") + 1  # nothing can be opened there
    while opening := _OPENING.search(answer, at, last_line):
        closing = _CLOSING.search(answer, opening.end())
        until, at = closing.span() if closing else (len(answer), len(answer))
        fenced.append((opening[1], answer[opening.end() : until]))
    return fenced
