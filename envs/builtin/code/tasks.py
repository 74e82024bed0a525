"""Short programming tasks of Gymnast's own: from `a + b` to prime numbers, in three levels.

Each is one line: the function's signature, what it returns, an expression for that, and arguments
to test it with. A task with `{k}` in it stands for several, with a number in its place. Tasks
become rows like MBPP's.
"""

import itertools
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any, NamedTuple

NUMBERS = range(2, 13)  # what `{k}` stands for
LEVELS = (1, 2, 3)


class ProgrammingTask(NamedTuple):
    """One function to write.

    Attributes:
        level: 1 (one operation) to 3 (an algorithm).
        signature: The function's signature.
        returns: What it returns, in words.
        expression: What it returns, as a Python expression of its parameters.
        arguments: The text of an argument list for each test.
    """

    level: int
    signature: str
    returns: str
    expression: str
    arguments: tuple[str, ...]

    @property
    def name(self) -> str:
        """The function's name."""
        return self.signature.partition("(")[0]

    @property
    def question(self) -> str:
        """The prompt."""
        return f"Write a Python function {self.signature} that returns {self.returns}."

    @property
    def solution(self) -> str:
        """A function that passes."""
        return f"def {self.signature}:\n    return {self.expression}"

    @property
    def row(self) -> Mapping[str, Any]:
        """The task as a row: `prompt`, `entry_point`, `test_list`, `level`."""
        namespace: dict[str, Any] = {}
        exec(self.solution, namespace)  # written here, not by a policy or a dataset
        tests = []
        for arguments in self.arguments:
            expected = eval(f"{self.name}({arguments})", namespace)
            tests.append(f"assert {self.name}({arguments}) == {expected!r}")
        return {
            "prompt": self.question,
            "entry_point": self.name,
            "test_list": tests,
            "level": self.level,
        }

    def with_number(self, k: int) -> "ProgrammingTask":
        """The task with a number in place of `{k}`."""
        texts = (self.signature, self.returns, self.expression)
        signature, returns, expression = (text.replace("{k}", str(k)) for text in texts)
        arguments = tuple(text.replace("{k}", str(k)) for text in self.arguments)
        return ProgrammingTask(self.level, signature, returns, expression, arguments)


def _tasks(*lines: tuple[int, str, str, str, tuple[str, ...]]) -> tuple[ProgrammingTask, ...]:
    return tuple(itertools.starmap(ProgrammingTask, lines))


_INTEGERS = ("3", "10", "-4", "0")
_PAIRS = ("2, 3", "10, 4", "-1, 5", "7, 7")
_WORDS = ("'cat'", "'a'", "'hello world'", "'Tree'")
_LISTS = ("[3, 1, 2]", "[5]", "[-1, 4, 4, 0]", "[10, 20, 30]")

# Shown in prompts with their solutions; never asked.
WORKED = _tasks(
    (1, "double(n)", "twice n", "n * 2", _INTEGERS),
    (1, "join(a, b)", "the text a followed by the text b", "a + b", ("'x', 'y'", "'', 'z'")),
    (1, "is_odd(n)", "True if n is odd, else False", "n % 2 == 1", ("1", "2", "-3")),
    (1, "second(items)", "the second element of the list items", "items[1]", ("[1, 2]",)),
)

_TASKS = _tasks(
    # one operation
    (1, "add(a, b)", "the sum of a and b", "a + b", _PAIRS),
    (1, "subtract(a, b)", "a minus b", "a - b", _PAIRS),
    (1, "multiply(a, b)", "the product of a and b", "a * b", _PAIRS),
    (1, "larger(a, b)", "the larger of a and b", "max(a, b)", _PAIRS),
    (1, "smaller(a, b)", "the smaller of a and b", "min(a, b)", _PAIRS),
    (1, "remainder(a, b)", "the remainder of a divided by b", "a % b", _PAIRS),
    (1, "negate(n)", "n with its sign changed", "-n", _INTEGERS),
    (1, "square(n)", "n squared", "n * n", _INTEGERS),
    (1, "absolute(n)", "the absolute value of n", "abs(n)", _INTEGERS),
    (1, "is_even(n)", "True if n is even, else False", "n % 2 == 0", ("3", "10", "7", "0")),
    (1, "is_positive(n)", "True if n is above 0, else False", "n > 0", ("3", "0", "-4", "9")),
    (1, "length(text)", "the length of text", "len(text)", _WORDS),
    (1, "upper(text)", "text in upper case", "text.upper()", _WORDS),
    (1, "first(text)", "the first character of text", "text[0]", _WORDS),
    (1, "last(items)", "the last element of the list items", "items[-1]", _LISTS),
    (1, "total(items)", "the sum of the list items", "sum(items)", _LISTS),
    (1, "largest(items)", "the largest element of the list items", "max(items)", _LISTS),
    (1, "smallest(items)", "the smallest element of the list items", "min(items)", _LISTS),
    (1, "count(items)", "the number of elements of the list items", "len(items)", _LISTS),
    (1, "add_{k}(n)", "n plus {k}", "n + {k}", _INTEGERS),
    (1, "subtract_{k}(n)", "n minus {k}", "n - {k}", _INTEGERS),
    (1, "times_{k}(n)", "n times {k}", "n * {k}", _INTEGERS),
    (1, "modulo_{k}(n)", "the remainder of n divided by {k}", "n % {k}", _INTEGERS),
    (1, "above_{k}(n)", "True if n is above {k}, else False", "n > {k}", ("1", "{k}", "99")),
    # two operations, or a method to know
    (2, "average(a, b)", "the mean of a and b", "(a + b) / 2", _PAIRS),
    (2, "sum_of_squares(a, b)", "a squared plus b squared", "a * a + b * b", _PAIRS),
    (2, "distance(a, b)", "the absolute difference of a and b", "abs(a - b)", _PAIRS),
    (2, "reverse(text)", "text reversed", "text[::-1]", _WORDS),
    (2, "shout(text)", "text in upper case, followed by '!'", "text.upper() + '!'", _WORDS),
    (2, "greet(name)", "'Hello, ' followed by name", "'Hello, ' + name", _WORDS),
    (2, "words(text)", "the number of words in text", "len(text.split())", _WORDS),
    (2, "sort(items)", "the list items in ascending order", "sorted(items)", _LISTS),
    (2, "backwards(items)", "the list items in reverse order", "items[::-1]", _LISTS),
    (2, "mean(items)", "the mean of the list items", "sum(items) / len(items)", _LISTS),
    (2, "spread(items)", "the largest minus the smallest of the list items",
         "max(items) - min(items)", _LISTS),
    (2, "scale_{k}(items)", "a list with each element of items times {k}",
         "[item * {k} for item in items]", _LISTS),
    (2, "shift_{k}(items)", "a list with {k} added to each element of items",
         "[item + {k} for item in items]", _LISTS),
    (2, "repeat_{k}(text)", "text repeated {k} times", "text * {k}", _WORDS),
    (2, "power_{k}(n)", "n to the power of {k}", "n ** {k}", _INTEGERS),
    (2, "divisible_{k}(n)", "True if n is divisible by {k}, else False", "n % {k} == 0",
         ("{k}", "{k} + 1", "{k} * 5")),
    # an algorithm
    (3, "factorial(n)", "the factorial of n", "1 if n < 2 else n * factorial(n - 1)",
         ("0", "1", "5", "10")),
    (3, "fibonacci(n)", "the n-th Fibonacci number, where fibonacci(0) is 0 and "
         "fibonacci(1) is 1", "n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)",
         ("0", "1", "7", "12")),
    (3, "is_prime(n)", "True if n is a prime number, else False",
         "n > 1 and all(n % d for d in range(2, n))", ("1", "2", "9", "13")),
    (3, "is_palindrome(text)", "True if text reads the same backwards, else False",
         "text == text[::-1]", ("'anna'", "'cat'", "'a'", "'ab'")),
    (3, "count_vowels(text)", "how many of the characters of text are vowels (a, e, i, o, u)",
         "sum(letter in 'aeiou' for letter in text)", ("'cat'", "'hello world'", "'xyz'")),
    (3, "evens(items)", "a list of the even elements of items",
         "[item for item in items if item % 2 == 0]", _LISTS),
    (3, "digit_sum(n)", "the sum of the digits of n", "sum(map(int, str(n)))",
         ("0", "7", "123", "9999")),
    (3, "unique(items)", "the list items without repeated elements, in ascending order",
         "sorted(set(items))", ("[3, 1, 3]", "[]", "[2, 2, 2]", "[5, 4, 4, 5]")),
    (3, "first_multiples_{k}(n)", "a list of the first n positive multiples of {k}",
         "[{k} * (i + 1) for i in range(n)]", ("0", "1", "4")),
    (3, "sum_below_{k}(items)", "the sum of those elements of items that are below {k}",
         "sum(item for item in items if item < {k})", _LISTS),
)  # fmt: skip


@cache
def tasks(level: int) -> tuple[ProgrammingTask, ...]:
    """All tasks up to a level, in order."""
    return tuple(task for made in _TASKS if made.level <= level for task in _all(made))


def _all(task: ProgrammingTask) -> Iterator[ProgrammingTask]:
    if "{k}" not in task.signature:
        yield task
        return
    for k in NUMBERS:
        yield task.with_number(k)
