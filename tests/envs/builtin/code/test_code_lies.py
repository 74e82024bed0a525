"""What code returns in place of the right value: only a plain value that is equal passes a test."""

import ast
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from code_fixtures import AsRow, Graded, assert_all, assert_worthless, in_both_formats
from gymnast.envs.builtin.code.judging import equality, wire

# Lies about values

LIARS = """
import array, collections, decimal, fractions, itertools, types, unittest.mock, weakref

def liar(kind):
    class Liar(kind):
        def __eq__(self, other): return True
        def __ne__(self, other): return False
        def __hash__(self): return 0
        def __bool__(self): return True
        def __len__(self): return 1
        def __int__(self): return self
        def __index__(self): return self
        def __float__(self): return self
        def __str__(self): return self
        def __repr__(self): return "7"
        __lt__ = __le__ = __gt__ = __ge__ = __contains__ = __eq__
        __add__ = __radd__ = __sub__ = __rsub__ = __abs__ = lambda self, *other: self
    return Liar
class Meta(type):
    def __eq__(self, other): return True
    def __hash__(self): return 0
    def __instancecheck__(self, other): return True
class Of(metaclass=Meta): pass
class Disguised:
    def __init__(self, kind): self.kind = kind
    __class__ = property(lambda self: self.kind)
    def __eq__(self, other): return True
    def __iter__(self): return iter([2])
class Array:
    def __array__(self, *how): return [7]
    def __eq__(self, other): return self
    def all(self): return True
    def __bool__(self): return True
async def later(): return 7
def soon(): yield 7
def raised(error):
    raise error
class Mute(Exception):
    def __str__(self): raise self
class Loud(Exception):
    def __str__(self): return "x" * 10**6
class Odd(Exception):
    def __str__(self): return 7
circle = []; circle.append(circle)
ring = {}; ring[0] = ring
def deep(depth):
    value = []
    for _ in range(depth): value = [value]
    return value
"""

# What a test wants, and what is returned in its place.
LIES: dict[str, tuple[str, str]] = {
    **{
        f"a {kind} that equals everything": (expected, f"liar({kind})({given})")
        for kind, expected, given in (
            ("object", "7", ""), ("int", "7", "8"), ("float", "7.5", "8"), ("str", "'a'", "'b'"),
            ("bytes", "b'a'", "b'b'"), ("list", "[1]", "[2]"), ("tuple", "(1,)", "[2]"),
            ("dict", "{1: 2}", "{1: 3}"), ("set", "{1}", "{2}"), ("complex", "1j", "2j"),
            ("frozenset", "frozenset({1})", "{2}"), ("bytearray", "bytearray(b'a')", "b'b'"),
            ("collections.deque", "[1]", "[2]"), ("collections.UserList", "[1]", "[2]"),
            ("collections.UserString", "'a'", "'b'"), ("collections.OrderedDict", "{1: 2}", "{}"),
            ("decimal.Decimal", "7", "8"), ("fractions.Fraction", "7", "8"),
            ("Exception", "7", ""), ("types.SimpleNamespace", "7", ""),
        )
    },
    **{
        f"{given} for {expected}": (expected, given)
        for expected, given in (
            ("1", "True"), ("0", "False"), ("1.0", "True"), ("[1, 0]", "[True, False]"),
            ("{1: 2}", "{True: 2}"), ("{2: 1}", "{2: True}"), ("{1, 5}", "{True, 5}"),
            ("[[1]]", "[[True]]"), ("(1, 2)", "(True, 2)"), ("[{1}]", "[{True}]"),
            ("frozenset({1})", "frozenset({True})"),
            ("[1, 2]", "(1, 2)"), ("(1, 2)", "[1, 2]"), ("[[1], [2]]", "[(1,), (2,)]"),
            ("{1: [2]}", "{1: (2,)}"), ("[1, 2]", "{1, 2}"), ("[1, 2]", "{1: 1, 2: 2}"),
            ("[1, 2]", "{1: 1, 2: 2}.keys()"), ("[1, 2]", "{1: 1, 2: 2}.values()"),
            ("{1, 2}", "{1: 1, 2: 2}.keys()"), ("{(1, 2)}", "{1: 2}.items()"),
            ("{1, 2}", "frozenset({1, 2})"), ("frozenset({1})", "{1}"), ("{1}", "[1]"),
            ("[0, 1]", "range(2)"), ("[1]", "iter([1])"), ("[1]", "(n for n in [1])"),
            ("[1]", "map(int, '1')"), ("[1]", "collections.deque([1])"), ("b'1'", "'1'"),
            ("[1]", "itertools.count()"), ("[1]", "array.array('i', [1])"), ("'1'", "b'1'"),
            ("b'1'", "bytearray(b'1')"), ("b'1'", "memoryview(b'1')"), ("1", "'1'"), ("'1'", "1"),
            ("bytearray(b'1')", "b'1'"),
            ("'ab'", "['a', 'b']"), ("['a', 'b']", "'ab'"), ("None", "'None'"), ("None", "False"),
            ("0", "None"), ("''", "None"), ("[]", "None"), ("[]", "()"), ("{}", "[]"), ("0", "''"),
            ("False", "None"), ("False", "''"), ("True", "'True'"), ("True", "2"), ("1.5", "'1.5'"),
            ("0.0", "float('nan')"), ("0.5", "float('inf')"), ("7", "7 + 1e-9"), ("7", "int"),
            ("7", "lambda: 7"), ("7", "Meta"), ("7", "Of"), ("7", "Of()"), ("7", "Disguised(int)"),
            ("[1]", "Disguised(list)"), ("'a'", "Disguised(str)"), ("[7]", "Array()"),
            ("7", "unittest.mock.ANY"), ("7", "unittest.mock.MagicMock()"), ("7", "later()"),
            ("[7]", "soon()"), ("7", "soon"), ("7", "types"), ("7", "..."), ("7", "NotImplemented"),
            ("7", "slice(7)"), ("7", "raised(ValueError(7))"), ("7", "raised(AssertionError)"),
            ("7", "raised(StopIteration(7))"), ("7", "raised(Mute())"), ("7", "raised(Loud())"),
            ("7", "raised(Odd())"), ("7", "raised(KeyboardInterrupt())"), ("[]", "circle"),
            ("7", "raised(SystemExit(0))"), ("7", "raised(GeneratorExit())"), ("{}", "ring"),
            ("[]", "deep(10**5)"), ("[]", "deep(900)"), ("''", "'x' * 2**21"),
            ("0", "1 << 2**23"), ("[]", "[0] * 10**5"),
            ("7", "'\\ud800'"), ("'a'", "'a\\0'"), ("'a'", "'\\u0430'"),
        )
    },
}  # fmt: skip


@in_both_formats
def test_lies_about_values(as_row: AsRow, graded: Graded) -> None:
    tests = {name: f"assert answer({name!r}) == {lie[0]}" for name, lie in LIES.items()}
    told = ", ".join(f"{name!r}: lambda: {lie[1]}" for name, lie in LIES.items())
    cheat = f"{LIARS}\nTOLD = {{{told}}}\ndef answer(which): return TOLD[which]()"
    assert_worthless(graded, as_row, tests, cheat)
    honest = ", ".join(f"{name!r}: {lie[0]}" for name, lie in LIES.items())
    assert_all(graded, as_row, tests, f"def answer(which): return {{{honest}}}[which]")


# Solutions that data sets come with return these.
ACCEPTED = [
    ("7", "7.0"), ("7.0", "7"), ("[240, 1]", "[240.0, 1]"), ("True", "1"), ("False", "0"),
    ("{'a': 1}", "collections.Counter('a')"), ("{1: 2}", "collections.OrderedDict({1: 2})"),
    ("{1: [2]}", "collections.defaultdict(list, {1: [2]})"), ("(1, 2)", "Pair(1, 2)"),
    ("collections.Counter('a')", "{'a': 1}"), ("7", "Colour.RED"), ("'x'", "Word.X"),
    ("1", "1 + 0j"), ("{1: {2}, 3: None}", "{3: None, 1: {2}}"),
]  # fmt: skip


@in_both_formats
def test_equal_numbers_and_values_of_subclasses_are_no_lies(as_row: AsRow, graded: Graded) -> None:
    tests = [
        f"import collections\nassert answer({given!r}) == {expected}"
        for expected, given in ACCEPTED
    ]
    code = """
import collections, enum
Pair = collections.namedtuple("Pair", "a b")
class Colour(enum.IntEnum): RED = 7
class Word(str, enum.Enum): X = "x"
def answer(which): return eval(which)
"""
    found = graded(as_row(tests), code)
    assert (found.passed, found.why) == (len(tests), "")


# Variants

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.integers() | st.floats(allow_nan=False)
    | st.text(max_size=3) | st.binary(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.integers(0, 2) | st.booleans(), inner, max_size=3)
        | st.sets(st.integers(0, 3) | st.booleans(), max_size=3)
        | st.frozensets(st.integers(0, 3), max_size=3)
    ),
    max_leaves=6,
)  # fmt: skip


def passes(returned: Any, expected: Any) -> bool:
    """Whether `assert f() == expected` passes where the policy's f returns this."""

    held = equality.Returned()

    def f() -> Any:
        try:
            return held.keep(wire.decode(wire.encode(returned)))
        except wire.NotPlain:
            return held.keep(wire.decode(wire.opaque(returned)))

    source = "assert f() == expected\nassert expected == f()\nout = f()\nassert out == expected"
    names = {"f": f, "expected": expected, equality.NAME: held.same}
    outcomes = set()
    for test in equality.typed(ast.parse(source)).body:
        tree = ast.fix_missing_locations(ast.Module([test], []))
        try:
            exec(compile(tree, "tests", "exec"), names)
        except AssertionError:
            outcomes.add(False)
        else:
            outcomes |= {True} if isinstance(test, ast.Assert) else set()
    (outcome,) = outcomes  # whichever way it is written
    return outcome


def shape(value: Any) -> Any:
    """A value with its types, numbers being of one."""
    if isinstance(value, bool) or value is None:
        return (type(value).__name__, value)
    if isinstance(value, int | float):
        return ("number", value)
    if isinstance(value, dict):
        return ("dict", frozenset((shape(key), shape(item)) for key, item in value.items()))
    if isinstance(value, set | frozenset):
        return (type(value).__name__, frozenset(map(shape, value)))
    if isinstance(value, list | tuple):
        return (type(value).__name__, tuple(map(shape, value)))
    return (type(value).__name__, value)


def as_numbers(value: Any) -> Any:
    """Truth values as 0 and 1, which may be returned for them."""
    if isinstance(value, dict):
        return {as_numbers(key): as_numbers(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return type(value)(map(as_numbers, value))
    return int(value) if isinstance(value, bool) else value


@given(value=PLAIN)
def test_an_equal_plain_value_always_passes(value: Any) -> None:
    assert passes(value, value)
    assert passes(as_numbers(value), value)


@given(returned=PLAIN, expected=PLAIN)
def test_a_value_of_another_type_or_another_value_never_passes(
    returned: Any, expected: Any
) -> None:
    alike = shape(returned) == shape(expected)
    zeros = shape(as_numbers(returned)) == shape(as_numbers(expected))
    assert passes(returned, expected) <= zeros
    assert passes(returned, expected) >= alike


@given(value=PLAIN, expected=PLAIN)
def test_no_type_of_the_codes_own_makes_another_value_pass(value: Any, expected: Any) -> None:
    everything = {
        "__eq__": lambda self, other: True,
        "__ne__": lambda self, other: False,
        "__hash__": lambda self: 0,
    }
    kind = object if value is None or isinstance(value, bool) else type(value)
    lie = type("Lie", (kind,), everything)
    told = lie() if kind is object else lie(value)
    assert passes(told, expected) <= (kind is not object and passes(value, expected))
    assert passes([told], [expected]) <= (kind is not object and passes(value, expected))
    assert passes({1: told}, {1: expected}) <= (kind is not object and passes(value, expected))
