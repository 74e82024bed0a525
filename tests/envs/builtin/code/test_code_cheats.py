"""Code that takes its tests at their word: paid for what it does, and for no more.

Attacks on boxes and on the wall between code and tests are in `test_code_tampering.py`.
"""

import asyncio
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from gymnast.envs.builtin.code import judging
from gymnast.envs.builtin.code.environment import Code


class Cheat(NamedTuple):
    """What is tried on a row, what it is worth, and a solution that is worth 1."""

    row: Mapping[str, Any]
    code: str
    worth: float
    honest: str


def checked(body: str) -> Mapping[str, Any]:
    """A row of HumanEval's kind."""
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    return {
        "prompt": "def total(numbers):\n    'The sum.'\n",
        "entry_point": "total",
        "test": f"def check(candidate):\n{lines}",
    }


RESULTS_KEPT_IN_A_NAME = checked(
    "out = candidate([1, 2, 3])\nassert out == 6\n"
    "out = candidate([4, 2])\nassert out == 6\n"
    "out = candidate([6])\nassert out == 6"
)
RAISES_AFTER = """
calls = 0
def total(numbers):
    global calls
    calls += 1
    if calls > {count}:
        raise ValueError
    return 6
"""
ADDS = "def total(numbers): return sum(numbers)"
HALVES = "def half(n): return n / 2"
KEYS = {"prompt": "Write keys(d).", "test_list": ["assert keys({1: 2}) == [1]"]}

CHEATS = {
    "raises once a right result is there": Cheat(
        RESULTS_KEPT_IN_A_NAME, RAISES_AFTER.format(count=1), 1 / 3, ADDS
    ),
    "raises from the start": Cheat(RESULTS_KEPT_IN_A_NAME, RAISES_AFTER.format(count=0), 0, ADDS),
    "raises where the row calls it beside its tests": Cheat(
        {
            "prompt": "# Write total(numbers).",
            "entry_point": "total",
            "test": "SUM = total([6])\ndef check(candidate): assert SUM == candidate([6]) == 6",
        },
        RAISES_AFTER.format(count=0),
        0,
        ADDS,
    ),
    "raises amid a test that sets what the next one reads": Cheat(
        {
            "prompt": "Write total(numbers).",
            "test_list": [
                "out = total([6])\nassert out == 6",
                "out = total([1])\nassert out == 1",
                "assert out in (1, 6)",
            ],
        },
        RAISES_AFTER.format(count=1),
        1 / 3,
        ADDS,
    ),
    "defines what the tests compare by": Cheat(
        {"prompt": "Write half(n).", "test_list": ["assert isclose(half(3), 1.5)"]},
        "def half(n): return 0\ndef isclose(*values): return True",
        0,
        HALVES,
    ),
    "defines a helper of the reference's": Cheat(
        {
            "prompt": "Write half(n).",
            "test_list": ["assert near(half(3), 1.5)"],
            "code": f"{HALVES}\ndef near(a, b): return abs(a - b) < 1e-6",
        },
        "def half(n): return 0\ndef near(a, b): return True",
        0,
        HALVES,
    ),
    "returns a view for a list": Cheat(KEYS, "def keys(d): return d.keys()", 0, "keys = list"),
    "returns nothing but truth": Cheat(
        {
            "prompt": "Write odd(n).",
            "test_list": ["assert odd(3) is True", "assert odd(2) is False"],
        },
        "class Odd: pass\ndef odd(n): return Odd()",
        0,
        "def odd(n): return n % 2 == 1",
    ),
}


def reward(row: Mapping[str, Any], code: str, sandbox: Mapping[str, Any]) -> float:
    async def play() -> float:
        env = Code(sandbox=sandbox)
        await env.areset(options={"row": row})
        answer = {"role": "assistant", "content": f"```python\n{code}\n```"}
        outcome = await env.act(answer)
        await env.aclose()
        return outcome.reward

    return asyncio.run(play())


@pytest.mark.parametrize("name", CHEATS)
def test_a_cheat_is_worth_what_it_does_and_an_honest_solution_everything(name: str) -> None:
    cheat = CHEATS[name]
    sandbox = {"backend": "local"}
    assert reward(cheat.row, cheat.code, sandbox) == pytest.approx(cheat.worth)
    assert reward(cheat.row, cheat.honest, sandbox) == 1.0


def test_assertions_are_made_where_python_is_started_without_them() -> None:
    program = f"""
import sys, types
for name in ("gymnast", "gymnast.envs"):  # only what a box is sent
    sys.modules[name] = types.ModuleType(name)
sys.modules["gymnast.envs"].__path__ = [{str(Path(judging.__file__).parents[1])!r}]
from gymnast.envs.builtin.code.judging.judge import Judge
judge = Judge("", [], [("assert 1 == 2", True), ("assert 1 == 1", True)])
judge.start()
judge.wait()
"""
    said = subprocess.run([sys.executable, "-O", "-c", program], capture_output=True, text=True)
    assert json.loads(said.stdout.splitlines()[-1])["passed"] == [1], said.stderr
