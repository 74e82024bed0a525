"""Answers that a scorer may evaluate: values and short formulas, and nothing that acts or lasts."""

import time

import pytest

from gymnast.envs.adapters.evaluated_answers import is_harmless


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "42",
        "BDAAEACE",
        "1 0 2\n3 4 5",
        "_ Q _ _\n_ _ _ Q",
        "['A', 'B']",
        "[[1, 0], [0, 1]]",
        "40*(94 - 90) + 83 - 74",
        "-152*y**5 - 2907*y**4 + 568*y**3",
        "-x**9 + 9*x**4/2 + C",
        "x*asin(3*x) + sqrt(1 - 9*x**2)/3 + C",
        "exp(-x)*cos(2*x) + log(x + 1)",
        "x**(3/2)",
        "x**-2",
        "9" * 2000,
    ],
)
def test_values_and_formulas_are_evaluated(answer: str) -> None:
    assert is_harmless(answer)


@pytest.mark.parametrize(
    "answer",
    [
        "__import__('os').system('true')",
        "().__class__.__mro__",
        "exit()",
        "open('x')",
        "eval('1')",
        "x.diff()",
        "sqrt.__globals__",
        "(lambda: 1)()",
        "[x for x in y]",
        "[i for i in iter(int, 1)]",
        "[0] * 10**9",
        "'a' * 10**9",
        "f'{x}'",
        "9**9**9",
        "9**(9*9*9*9*9*9*9)",
        "((9**99)**99)**99",
        "10**-1e9",
        "2**1000",
        "(9!)!",
        "exp(exp(exp(exp(9))))",
        "factorial(99999)",
        "Integral(x, x)",
        "x if y else z",
        "x[0]",
        "1 << 99999999",
        "1 and exit",
        "*x",
        "(" * 300 + ")" * 300,
        "-" * 1500 + "1",
        "1+" * 900 + "1",
        "9" * 2001,
    ],
)
def test_nothing_else_is(answer: str) -> None:
    began = time.monotonic()
    assert not is_harmless(answer)
    assert time.monotonic() - began < 5
