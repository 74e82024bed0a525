"""Rows of programming tasks: both formats, and what is said of those that cannot be read."""

import re
from typing import Any

import pytest

from gymnast.envs.builtin.code.rows import code_task
from gymnast.errors import DataError

HUMANEVAL = {
    "task_id": "Test/0",
    "prompt": """import math

def helper(n):
    return n + 1

def up(n):
    'n rounded up.'
""",
    "entry_point": "up",
    "test": """
METADATA = {"author": "nobody"}

def check(candidate):
    "Tests."
    assert True, "This prints if this assert fails 1"
    assert candidate(1.5) == 2
    value = candidate(2.5)
    assert value == helper(2)
    for n in range(3):
        assert candidate(n) == n, "whole"
    assert True
""",
}
MBPP = {
    "task_id": 7,
    "text": "Write a function to find the shared elements.",
    "code": "...",
    "test_list": ["assert set(shared((3, 4), (4, 5))) == {4}", "assert shared((), ()) == ()"],
    "test_setup_code": "",
}

# What MBPP's tests may use without importing it.
IMPORTS = "from datetime import date\nfrom decimal import Decimal\nfrom fractions import Fraction"


def of_candidate(test: str) -> str:
    """A test of MBPP's kind as one of HumanEval's."""
    return re.sub(r"\bf\b(?!')", "candidate", test)


def test_humaneval_has_a_test_for_each_statement_that_asserts_something() -> None:
    task = code_task(HUMANEVAL)
    assert (task.name, task.tests.names, task.tests.total) == ("up", ("up",), 3)
    assert [source for source, counts in task.tests.steps if not counts] == [
        "candidate = up", "value = candidate(2.5)",
    ]  # fmt: skip
    assert "n rounded up." in task.question and "assert" not in task.question
    assert "METADATA" in task.tests.context and "def helper" in task.tests.context


def test_a_call_beside_check_is_a_step_of_the_tests() -> None:
    """What the code raises there must not count as an error of the row, which stops the run."""
    test = "LEAST = 1\nGOT = [up(0.5)]\nimport math\ndef check(candidate):\n    assert GOT == [1]"
    tests = code_task({**HUMANEVAL, "test": test}).tests
    assert [source for source, _ in tests.steps[:2]] == ["GOT = [up(0.5)]", "import math"]
    assert "LEAST" in tests.context and tests.total == 1


@pytest.mark.parametrize(
    "body",
    [
        "    if candidate(1) == 1:\n        return\n    assert False",
        "    count = 0\n    def up():\n        nonlocal count\n        count += candidate(1)\n"
        "    up()\n    assert count == 2",
    ],
)
def test_a_check_that_cannot_be_parted_is_one_test(body: str) -> None:
    task = code_task({**HUMANEVAL, "test": f"def check(candidate):\n{body}"})
    assert task.tests.total == 1
    assert task.tests.steps[-1] == ("check(up)", True)


def test_mbpp_has_a_test_for_each_entry_and_tells_the_name() -> None:
    task = code_task(MBPP)
    assert (task.name, task.tests.total) == ("shared", 2)
    assert "`shared`, as in `shared((3, 4), (4, 5))`" in task.question
    assert "{4}" not in task.question


def test_sanitized_mbpp_with_imports_and_a_module_that_only_the_solution_imports() -> None:
    row = {
        "prompt": "Write half(n).",
        "test_imports": ["import math"],
        "test_list": ["assert math.isclose(half(3), 1.5)", "assert sys.getsizeof(half(2)) > 1"],
    }
    task = code_task(row)
    assert task.tests.names == ("half",)
    assert task.question == "Write half(n)."
    assert "import math" in task.context and "import sys" in task.context


def test_a_function_may_have_the_name_of_one_of_pythons_own() -> None:
    assert code_task({"text": "Add.", "test_list": ["assert sum(1, 2) == 3"]}).name == "sum"
    row = {"text": "Add.", "test_list": ["assert max(1, 2) == 3"], "entry_point": "max"}
    assert code_task(row).tests.names == ("max",)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"prompt": "Hi."}, "neither 'test_list' nor 'test'"),
        ({**HUMANEVAL, "entry_point": None}, "Test/0.*'entry_point' is None"),
        ({**HUMANEVAL, "test": "assert 1"}, "Test/0.*no function check"),
        ({**HUMANEVAL, "test": "def check(:"}, "Test/0.*'test' is no Python"),
        ({**MBPP, "text": None}, "the row 7.*'prompt' is None"),
        ({**MBPP, "test_list": []}, "the row 7.*'test_list' is"),
        ({**MBPP, "test_list": "assert f()"}, "'test_list' is"),
        ({**MBPP, "test_list": ["assert 1"]}, "calls no function"),
        ({**MBPP, "test_list": ["assert 1 + 1 == 2"]}, "calls no function"),
        ({**MBPP, "test_list": ["assert ("]}, "'test_list' is no Python"),
        ({**MBPP, "test_setup_code": "root = Node(1)"}, "uses Node"),
    ],
)
def test_a_row_that_cannot_be_read_is_named(row: dict[str, Any], words: str) -> None:
    with pytest.raises(DataError, match=words):
        code_task(row)


@pytest.mark.parametrize(
    "test",
    [
        "assert (f(1) == 2, 'two')",
        "assert [f(1) == 2]",
        "assert f(1) == 2 or 'text'",
        "assert f(1) or True",
        "assert not (f(1) and False)",
        "assert f(1) == f(1)",
        "assert lambda: f(1) == 2",
        "assert (x := 'text') if f(1) else 1",
        "assert (n for n in f(1))",
        "try:\n    assert f(1) == 2\nexcept AssertionError:\n    pass",
        "try:\n    assert f(1) == 2\nexcept:\n    print('no')",
        "from contextlib import suppress\nwith suppress(Exception):\n    assert f(1) == 2",
        "import contextlib\nwith contextlib.suppress(AssertionError):\n    assert f(1) == 2",
        "import builtins\ntry:\n    assert f(1) == 2\nexcept builtins.AssertionError:\n    pass",
        "try:\n    f(-1)\n    assert False, 'no error'\nexcept Exception:\n    pass",
        "for n in (1, 2):\n    try:\n        assert f(n) == 2\n    finally:\n        continue",
        "assert f",
        "assert callable(f)",
        "assert f is not None",
        "assert f and f.__name__",
        "assert f == f",
        "assert isinstance(f(1), object)",
        "assert type(f(1))",
        "assert repr(f(1))",
        "assert f(1) == 2 or f(1) != 2",
        "assert f(1) in [2] or f(1) not in [2]",
        "assert f(1) or not f(1)",
        "assert 1 + 1 == 2",
        "assert len([1, 2]) == 2",
        "assert 'a' in 'abc', f(1)",
        "assert f'{f(1)}!'",
    ],
)
def test_an_assertion_that_cannot_fail_is_refused_with_its_row(test: str) -> None:
    row = {"task_id": 9, "prompt": "Write f(n).", "test_list": ["assert f(2) == 3", test]}
    with pytest.raises(DataError, match=r"the row 9: 'test_list' has `assert .*cannot fail"):
        code_task(row)
    body = "".join(f"    {line}\n" for line in of_candidate(test).splitlines())
    check = f"def check(candidate):\n    assert candidate(2) == 3\n{body}"
    with pytest.raises(DataError, match=r"Test/0.*'test' has `assert .*cannot fail"):
        code_task({**HUMANEVAL, "test": check})


@pytest.mark.parametrize(
    "test",
    [
        "f(1)",
        "assert True",
        "assert 'text'",
        "out = f(1)",
        "out = f(1)\nassert True",
        "def test():\n    assert f(1) == 2",
        "class Test:\n    def test_it(self):\n        assert f(1) == 2",
        "async def test():\n    assert f(1) == 2",
        "test = lambda: f(1) == 2",
        "if False:\n    assert f(1) == 2",
        "while 0:\n    assert f(1) == 2",
        "for n in []:\n    assert f(n) == 2",
        "for n in [1]:\n    continue\n    assert f(n) == 2",
        "xs = [1]\nassert len(xs) == 1",
        "print(f(1) == 2)",
    ],
)
def test_a_test_that_looks_at_nothing_is_refused_with_its_row(test: str) -> None:
    row = {"task_id": 9, "prompt": "Write f(n).", "test_list": ["assert f(2) == 3", test]}
    with pytest.raises(DataError, match=r"the row 9: 'test_list' (has no assertion|asserts)"):
        code_task(row)
    body = "".join(f"    {line}\n" for line in of_candidate(test).splitlines())
    with pytest.raises(DataError, match=r"Test/0.*'test' has no assertion"):
        code_task({**HUMANEVAL, "test": f"def check(candidate):\n{body}"})


def test_a_check_that_is_a_generator_is_refused() -> None:
    test = "def check(candidate):\n    assert candidate(1) == 2\n    yield"
    with pytest.raises(DataError, match=r"Test/0.*has a `yield`"):
        code_task({**HUMANEVAL, "test": test})


def test_a_test_that_would_run_what_the_code_returns_is_refused() -> None:
    for call in ("eval(f(1))", "eval(compile(f(1), '', 'eval'))", "len(eval(str(f(1))))"):
        with pytest.raises(DataError, match="would run what the code returns"):
            code_task({"prompt": "Write f(n).", "test_list": [f"assert {call} == 2"]})
    task = code_task({"prompt": "Write f(n).", "test_list": ["assert f(1) == eval('1 + 1')"]})
    assert task.tests.total == 1


def test_a_comparison_of_the_function_with_itself_by_another_name_is_no_test() -> None:
    """HumanEval/33 has such ones."""
    test = """
def check(candidate):
    assert tuple(candidate(1)) == tuple(up(1))
    assert candidate(1) == 2
    assert up(2) == candidate(2)
"""
    steps = code_task({**HUMANEVAL, "test": test}).tests.steps
    assert [counts for _, counts in steps] == [False, False, True]


def test_whatever_judges_the_code_counts_and_what_only_prepares_does_not() -> None:
    test = """
def near(a, b):
    assert abs(a - b) < 1e-6
def check(candidate, places=3):
    near(candidate(1), 2)
    seen = [candidate(2)]
    assert len(seen) == 1
    for n in range(3):
        assert True
    if candidate(3) != 4:
        raise ValueError
    try:
        candidate(-1)
        assert False
    except ValueError:
        pass
    with raises(TypeError):
        candidate('a')
    candidate(10)
check(up)
"""
    row = {**HUMANEVAL, "test": test.replace(", places=3", "")}
    steps = code_task(row).tests.steps
    assert [source.split("\n")[0] for source, counts in steps if counts] == [
        "near(candidate(1), 2)", "assert len(seen) == 1", "if candidate(3) != 4:", "try:",
        "with raises(TypeError):",
    ]  # fmt: skip
    assert steps[-1][0].endswith("candidate(10)"), "what comes last must not fail either"
    assert "check(up)" not in code_task(row).tests.context
    whole = code_task({**HUMANEVAL, "test": test}).tests.steps
    assert whole[-1] == ("check(up)", True), "its other arguments are there only when it is called"


@pytest.mark.parametrize(
    "test",
    [
        "assert f(1) == 2, 'two'",
        "assert any(g(1) == 2 for g in [f])",
        "assert list(map(f, [1])) == [2]",
        "assert f.__call__(1) == 2",
        "g = f\nassert g(1) == 2",
        "def both(n):\n    return f(n)\nassert both(1) == 2",
        "def test():\n    assert f(1) == 2\ntest()",
        "class Test:\n    def run(self):\n        assert f(1) == 2\nTest().run()",
        "found = {}\nfound['one'] = f(1)\nassert found == {'one': 2}",
        "ok = False\nif f(1) == 2:\n    ok = True\nassert ok",
        "assert (n := f(1)) and n == 2",
        "import numpy as np\nnp.testing.assert_allclose(f(1), 2)",
        "if f(1) != 2:\n    raise ValueError",
        "try:\n    f(-1)\n    assert False\nexcept ValueError:\n    pass",
        "import pytest\ntry:\n    assert f(1) == 2\nexcept AssertionError:\n    pytest.fail('no')",
        "assert isinstance(f(1), int)",
        "assert f(1) is not None",
        "assert f(1) != f(1)",
        "assert f(1) or f(2)",
        "assert not [*f(1)]",
        "try:\n    f(-1)\nexcept ValueError:\n    pass\nassert f(1) == 2",
        "try:\n    assert f(1) == 2\nexcept AssertionError as e:\n    raise ValueError from e",
    ],
)
def test_an_assertion_that_may_fail_is_taken(test: str) -> None:
    assert code_task({"prompt": "Write f(n).", "test_list": [test]}).tests.total == 1


@pytest.mark.parametrize(
    ("test", "words"),
    [
        ("assert f(lambda n: n, 1) == 2", r"it passes `lambda n: n` to f"),
        ("assert f([1, lambda n: n]) == 2", r"it passes `\[1, lambda n: n\]` to f"),
        ("assert f(key=len) == 2", r"it passes `len` to f"),
        ("import math\nassert f(math.sqrt) == 2", r"it passes `math.sqrt` to f"),
        ("def g(n):\n    return n\nassert f(g) == 2", r"it passes `g` to f"),
        ("import datetime\nassert f(datetime.date(2020, 1, 1)) == 2", r"it passes `datetime.date"),
        ("from datetime import datetime as d\nassert f(d.now()) == 2", r"it passes `d.now\(\)`"),
        ("assert f(Decimal(1)) == 2", r"it passes `Decimal\(1\)` to f"),
        ("x = {'a': Fraction(1, 2)}\nassert f(x) == 2", r"it passes `x` to f"),
        ("class Node:\n    pass\nassert f(Node()) == 2", r"it passes `Node\(\)` to f"),
        ("found = f(lambda: 1)\nassert found == 2", r"it passes `lambda: 1` to f"),
        ("assert f(1) == date(2020, 1, 1)", r"it wants `date\(2020, 1, 1\)` from f"),
        ("assert f(1) and [date(2020, 1, 1)] == f(1)", r"it wants `\[date\(2020, 1, 1\)\]` from f"),
        ("assert f(1) == Decimal('0.1')", r"it wants `Decimal\('0.1'\)` from f"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("form", ["MBPP", "HumanEval"])
def test_a_test_that_no_code_can_pass_is_refused_with_its_row(
    test: str, words: str, form: str
) -> None:
    """It would give every code reward 0, as neither such a value nor its equal can be sent."""
    row: dict[str, Any] = {"prompt": "Write f(n).", "test_list": ["assert f(0) == 0", test]}
    if form == "HumanEval":
        lines = f"{IMPORTS}\n{of_candidate(test)}".replace("\n", "\n    ")
        check = f"def check(candidate):\n    assert candidate(0) == 0\n    {lines}"
        row = {"prompt": "def f(n):\n    'It.'\n", "entry_point": "f", "test": check}
        words = re.sub(r"\bf$", "candidate", words)
    with pytest.raises(DataError, match=f"no code can pass: .*{words}") as raised:
        code_task(row)
    assert "only plain values" in str(raised.value)


@pytest.mark.parametrize(
    "test",
    [
        "assert f(1) == Decimal('0.5')",
        "assert f(2) == Fraction(4, 2)",
        "assert f(1) != date(2020, 1, 1)",
        "assert date.fromisoformat(f(1)) == date(2020, 1, 1)",
        "assert f(date(2020, 1, 1).year) == 2020",
        "assert f(1) or f(lambda: 1)",
        "assert f(int, iter([1]), range(3)) == 2",
        "import math\nassert f(math.pi) == 2",
        "class Pair(tuple):\n    pass\nassert f(Pair((1, 2))) == 2",
        "class Near:\n    def __eq__(self, other):\n        return True\nassert f(1) == Near()",
        "x = x1 = lambda: 1\nx = 1\nassert f(x) == 2",
        "try:\n    f(lambda: 1)\nexcept ValueError:\n    pass\nassert f(1) == 2",
        "assert sorted([1], key=lambda n: f(n)) == [1]",
        "assert callable(lambda: f(len)) and f(1)",
        "a = b\nb = a\nassert f(a) == 1",
        "@vars\nclass Names:\n    pass\nassert f(Names) == 1",
    ],
)
def test_a_test_that_some_code_may_pass_is_taken(test: str) -> None:
    assert code_task({"prompt": "Write f(n).", "test_list": [test]}).tests.total == 1


def test_what_code_is_compared_by_comes_from_python_or_the_reference() -> None:
    row = {"prompt": "Write half(n).", "test_list": ["assert isclose(half(3), 1.5)"]}
    task = code_task(row)
    assert task.tests.names == ("half",)
    assert "from math import isclose" in task.tests.context
    assert "isclose" not in task.context
    own = {**row, "test_list": ["assert near(half(3), 1.5)"]}
    with pytest.raises(
        DataError, match=r"use near as well as half.*code must not supply.*define near in"
    ):
        code_task({**own, "entry_point": "half"})
    code = "def near(a, b): return abs(a - b) < 1e-6\ndef half(n): return n / 2"
    task = code_task({**own, "code": code, "entry_point": "half"})
    assert task.tests.names == ("half",) and "def near" in task.tests.context
    assert code_task({**own, "code": code}).tests.names == ("half",)  # which the prompt names
    with pytest.raises(DataError, match=r"calls near and half; name in 'entry_point'"):
        code_task({**own, "code": code, "prompt": "Divide a number by two."})
    both = code_task({**own, "entry_point": ["half", "near"]})
    assert both.tests.names == ("half", "near")


def test_a_local_name_of_the_reference_is_no_helper() -> None:
    code = "def half(n):\n    near = n / 2\n    return near"
    row = {"prompt": "Write half(n).", "test_list": ["assert near(half(3), 1.5)"], "code": code}
    with pytest.raises(DataError, match="use near as well as half"):
        code_task(row)


def test_tests_that_call_different_functions_ask_for_all_of_them() -> None:
    row = {"prompt": "Write f and g.", "test_list": ["assert f(1) == 2", "assert g(1) == 3"]}
    assert code_task(row).tests.names == ("f", "g")
