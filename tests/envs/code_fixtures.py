"""Grading code against tests that each ask it for another cheat, in both formats of rows.

The policy's function is `answer(which)`, so that one grading tries a whole class of cheats.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

from gymnast.envs.builtin.code.grading import Grade, GradingLimits, grade
from gymnast.envs.builtin.code.rows import code_task
from gymnast.sandboxes import Sandbox, open_sandbox

Row = Mapping[str, Any]


def humaneval(tests: list[str]) -> Row:
    lines = [line for test in tests for line in test.replace("answer(", "candidate(").split("\n")]
    return {
        "task_id": "Cheats/0",
        "prompt": "def answer(which):\n    'The answer.'\n",
        "entry_point": "answer",
        "test": "def check(candidate):\n" + "".join(f"    {line}\n" for line in lines),
    }


def mbpp(tests: list[str]) -> Row:
    return {
        "task_id": 0,
        "text": "Write answer(which).",
        "code": "def answer(which):\n    return None",
        "test_setup_code": "",
        "test_list": tests,
        "challenge_test_list": [],
    }


in_both_formats = pytest.mark.parametrize("as_row", [humaneval, mbpp])
AsRow = Callable[[list[str]], Row]
Graded = Callable[..., Grade]


@pytest.fixture(scope="module")
def graded() -> Iterator[Graded]:
    """Grades code in two boxes, which all tests use one after another."""
    boxes: list[Sandbox] = []

    def usable(place: int) -> Sandbox:
        while len(boxes) <= place:
            boxes.append(open_sandbox("local"))
        if not boxes[place].alive:
            boxes[place] = open_sandbox("local")
        return boxes[place]

    def graded(row: Row, code: str, call_s: float = 2.0) -> Grade:
        task = code_task(row)

        class Lent:
            async def apython(self, code: str, **limits: Any) -> Any:
                return await usable(1).apython(code, **limits)

            async def aclose(self) -> None:
                await usable(1).apython("import os; os._exit(0)")

        async def take() -> Any:
            return Lent()

        limits = GradingLimits(call_s, 60.0)
        return asyncio.run(grade(task.tests, task.context, code, usable(0), take, limits))

    yield graded
    for box in boxes:
        box.close()


def assert_worthless(graded: Graded, as_row: AsRow, tests: Mapping[str, str], code: str) -> None:
    """None of the tests may be passed by the code; those that are, are named."""
    found = graded(as_row(list(tests.values())), code)
    assert found.loaded, found.why
    assert found.total == len(tests)
    if found.passed:
        won = [name for name, test in tests.items() if graded(as_row([test]), code).passed]
        raise AssertionError(f"passed: {won or found.passed}")


def assert_all(graded: Graded, as_row: AsRow, tests: Mapping[str, str], code: str) -> None:
    found = graded(as_row(list(tests.values())), code)
    assert (found.passed, found.why) == (len(tests), "")
