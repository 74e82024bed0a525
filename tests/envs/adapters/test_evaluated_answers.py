"""Answers that a scorer may evaluate: values, formulas, and nothing that acts or looks around."""

import pytest

from gymnast.envs.adapters.evaluated_answers import is_harmless


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "42",
        "up down",
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
        "9" * 5000,
        "9**9**9",
        "[0] * 10**9",
        "(None, True, {1: 'a b', 'c': {2, 3}})",
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
        "f'{x}'",
        "b'x'",
        "(9!)!",
        "factorial(99999)",
        "Integral(x, x)",
        "x if y else z",
        "x[0]",
        "'%s' % x",
        "1 and exit",
        "*x",
        "sin(*x)",
        "sin(x, y)",
        "f(x)",
        "x\x00",
        "(" * 300 + ")" * 300,
        "-" * 100_000 + "1",
    ],
)
def test_nothing_else_is(answer: str) -> None:
    assert not is_harmless(answer)


@pytest.mark.parametrize("answer", ["oracle_answer", "self,", "\u017felf", " self "])
def test_variables_of_the_scorer_are_not_named(answer: str) -> None:
    assert not is_harmless(answer)


@pytest.mark.parametrize("answer", ["'exit()'", "['x.y']", "{'1': '(lambda: 1)'}", "('exit' '()')"])
def test_strings_are_evaluated_again_so_they_are_words(answer: str) -> None:
    assert not is_harmless(answer)
