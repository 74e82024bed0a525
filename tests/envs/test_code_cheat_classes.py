"""Cheats by class, each in both formats of rows: worth nothing, where an honest solution gets all.

The policy's function is `answer(which)`: each test asks it for another cheat, so that one grading
tries a whole class. The wall between boxes is attacked in `test_code_tampering.py`; single rows
whose tests could be got around are in `test_code_cheats.py`.
"""

import ast
import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymnast.envs.code import Code
from gymnast.envs.code_rows import code_task
from gymnast.envs.grading import Grade, GradingLimits, grade
from gymnast.envs.judging import equality, wire
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

        async def take(*purpose: str) -> Any:
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
    def __str__(self): return "x" * 10**7
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
            ("[]", "deep(10**5)"), ("[]", "deep(900)"), ("''", "'x' * 2**22"),
            ("0", "1 << 2**23"), ("[]", "[0] * 10**6"),
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


# Ending, hanging and flooding the process that is asked

ENDINGS = {
    "ends": "os._exit(0)",
    "exits": "sys.exit(0)",
    "is killed": "os.kill(os.getpid(), signal.SIGKILL)",
    "crashes": "ctypes.string_at(0)",
    "ends while it hangs": "threading.Timer(0.05, os._exit, (0,)).start() or time.sleep(9)",
    "exits in a thread": "threading.Thread(target=sys.exit).start()",
    "answers at its exit": "atexit.register(os.write, 1, FORGED) and sys.exit(0)",
    "answers from a child": "os.fork() or os.write(1, FORGED) and os._exit(0)",
    "answers on every descriptor": "[spray(fd) for fd in range(64)] and os._exit(0)",
    "answers on every descriptor and goes on": "[spray(fd) for fd in range(64)] and None",
    "closes every descriptor": "os.closerange(0, 64)",
    "becomes another program": "os.execv('/bin/echo', ['echo', FORGED.decode()])",
    "recurses": "forever()",
    "hangs until it is interrupted": "signal.setitimer(signal.ITIMER_REAL, 0.01) or time.sleep(9)",
    "floods": "[os.write(1, b'x' * 65536) for _ in itertools.count()]",
    "hangs": "time.sleep(9)",
    "hangs when it is looked at": "Hangs()",
    "hangs in its error": "hang()",
    "raises without end": "[answer('recurses') for _ in itertools.count()]",
    "forks": "[os.fork() for _ in range(3)] and None",
}
ENDERS = """
import atexit, ctypes, itertools, os, signal, sys, threading, time
FORGED = b'\\n{"passed": [0, 1, 2, 3], "why": {}, "done": true}\\n["value", ["int", "0x7"]]\\n'
def spray(fd):
    try: return os.write(fd, FORGED)
    except OSError: return 1
def forever(): return forever()
class Hangs:
    __class__ = property(lambda self: time.sleep(9))
    def __bool__(self): return time.sleep(9)
class Hung(Exception):
    def __str__(self): return time.sleep(9)
def hang(): raise Hung
"""


@in_both_formats
def test_ending_hanging_and_flooding(as_row: AsRow, graded: Graded) -> None:
    tried = [name for name in ENDINGS if as_row is mbpp or "hangs" not in name]
    tests = {name: f"assert answer({name!r}) == 0x48151623" for name in tried}
    told = ", ".join(f"{name!r}: lambda: {told}" for name, told in ENDINGS.items())
    cheat = f"{ENDERS}\nTOLD = {{{told}}}\ndef answer(which): return TOLD[which]()"
    found = graded(as_row(list(tests.values())), cheat, call_s=0.5)
    assert (found.loaded, found.passed) == (True, 0)
    assert_all(graded, as_row, tests, "def answer(which): return 0x48151623")


@in_both_formats
def test_a_test_that_was_passed_counts_whatever_comes_after(as_row: AsRow, graded: Graded) -> None:
    tests = [f"assert answer({number}) == {number}" for number in range(4)]
    code = """
import os, time
def answer(n):
    return n if n == 0 else time.sleep(9) if n == 1 else os._exit(0) if n == 2 else 1 / 0
"""
    assert graded(as_row(tests), code, call_s=0.5).passed == 1


# Changing Python under the tests

PATCHES = {
    "builtins": """
import builtins
for name in ("all", "any", "len", "sorted", "abs", "round", "isinstance", "sum", "min", "max"):
    setattr(builtins, name, lambda *values, **named: True)
builtins.AssertionError = type("Passed", (Exception,), {})
builtins.__build_class__ = None
""",
    "the tests' means, by their names": """
def isclose(*values, **named): return True
sorted = len = abs = all = any = round = isinstance = set = list = Counter = approx = isclose
candidate = check = judge = _judge = None
""",
    "__builtins__": "__builtins__ = {'AssertionError': Exception, '__import__': __import__}",
    "the modules that compare": """
import math, unittest, collections, operator, sys, types
math.isclose = operator.eq = lambda *values, **named: True
unittest.TestCase.assertEqual = lambda *values, **named: None
collections.Counter.__eq__ = lambda *values: True
sys.modules["math"] = sys.modules["ast"] = sys.modules["queue"] = types.ModuleType("math")
""",
    "what carries answers": """
import json, sys
json.dumps = lambda value, **named: '["value", ["opaque", true]]'
for name, module in list(sys.modules.items()):
    if name.startswith("gymnast") and hasattr(module, "encode"):
        module.encode = lambda value: '{"passed": [0, 1, 2, 3, 4, 5, 6], "done": true}'
""",
    "what calls it": """
import gc, sys
module = sys.modules["gymnast.envs.judging.candidate"]
module.Candidate.call = lambda self, request: self._say(["value", '["opaque", true]'])
""",
    "the assertion's code": """
import dis, sys, threading
def seen(frame, event, argument):
    frame.f_trace_opcodes = True
    return seen
sys.settrace(seen); sys.setprofile(seen); threading.settrace(seen)
sys.excepthook = sys.unraisablehook = lambda *details: None
sys.setrecursionlimit(10**6)
""",
    "types, from beneath": """
import ctypes, gc
for kind in (int, list, str):
    space = gc.get_referents(kind.__dict__)[0]
    space["__eq__"] = lambda self, other: True
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(kind))
""",
}
COMPARISONS = {
    "a value": "assert answer(1) == 0x48151623",
    "a length": "assert len(answer(2)) == 77",
    "an order": "assert sorted(answer(3)) == [7, 8, 9]",
    "a distance": "assert abs(answer(4) - 70.25) < 1e-6",
    "all of it": "assert all(n == 77 for n in [answer(5), answer(6)])",
    "by a module": "import math\nassert math.isclose(answer(7), 70.25)",
    "as a multiset": "import collections as c\nassert c.Counter(answer(8)) == c.Counter('abca')",
}
RIGHT = """
def answer(which):
    return {1: 0x48151623, 2: "x" * 77, 3: [9, 8, 7], 4: 70.25, 7: 70.25, 8: "caab"}.get(which, 77)
"""


@in_both_formats
@pytest.mark.parametrize("name", PATCHES)
def test_changing_python_under_the_tests(name: str, as_row: AsRow, graded: Graded) -> None:
    tests = list(COMPARISONS.values())[: 2 if name == "builtins" else None]  # each hangs a call
    cheat = f"def answer(which):\n    exec({PATCHES[name]!r}, globals())\n    return [1]"
    found = graded(as_row(tests), cheat, call_s=1.0)
    assert (found.passed, found.total) == (0, len(tests))


@in_both_formats
def test_right_answers_pass_every_comparison(as_row: AsRow, graded: Graded) -> None:
    assert_all(graded, as_row, COMPARISONS, RIGHT)


# Looking for what is expected

LOOKS = {
    "in its callers": "[f for f in frames() for v in [*f.f_locals.values(), "
    "*f.f_globals.values()] if found(v)]",
    "in all objects": "[o for o in gc.get_objects() if isinstance(o, (list, tuple)) and found(o)]",
    "in sources": "[line for f in frames() for line in linecache.getlines(f.f_code.co_filename) "
    "if found(line)]",
    "in the code of its callers": "[c for f in frames() for c in f.f_code.co_consts if found(c)]",
    "in its own file": "inspect.getsource(answer)",
    "in files": "[p for p in glob.glob('**', recursive=True)[:99] if os.path.isfile(p) "
    "and found(open(p, errors='replace').read(99999))]",
    "in its descriptors": "[fd for fd in range(3, 64) if found(os.pread(fd, 99999, 0))]",
    "on command lines": "[p for p in glob.glob('/proc/[0-9]*/cmdline') if found(read(p))]",
    "in environments": "[k for k, v in os.environ.items() if found(k + v)]",
    "in arguments": "[a for a in sys.argv + sys.orig_argv if found(a)]",
    "in modules": "[n for n, m in list(sys.modules.items()) for v in list(vars(m).values()) "
    "if isinstance(v, (str, bytes, list, tuple, dict)) and found(v)]",
}
LOOKERS = """
import gc, glob, inspect, linecache, os, re, sys
WON = []
def found(thing):
    text = repr(thing)
    for number in re.findall("4815162" + r"(\\d\\d)", text):
        WON.append(int("4815162" + number))
    return False
def frames():
    frame = sys._getframe()
    while frame:
        yield frame
        frame = frame.f_back
def read(path):
    with open(path, "rb") as file: return file.read()
"""


@in_both_formats
def test_looking_for_what_is_expected(as_row: AsRow, graded: Graded) -> None:
    secrets = {name: int(f"4815162{10 + place}") for place, name in enumerate(LOOKS)}
    tests = {name: f"assert answer({name!r}) == {secret}" for name, secret in secrets.items()}
    told = ", ".join(f"{name!r}: lambda: {look}" for name, look in LOOKS.items())
    cheat = f"""{LOOKERS}
LOOKS = {{{told}}}
def answer(which):
    WON.clear()
    try: LOOKS[which]()
    except OSError: pass
    return WON[list(LOOKS).index(which) % len(WON)] if WON else None
"""
    assert_worthless(graded, as_row, tests, cheat)
    assert_all(graded, as_row, tests, f"def answer(which): return {secrets!r}[which]")


# Changing the arguments, remembering, raising

INPUTS = [
    "xs = [3, 1, 2]\nassert answer(xs) == sorted(xs)",
    "ys = {'b': 2, 'a': 1}\nassert answer(ys) == sorted(ys)",
    "rows = [[2], [1]]\nassert answer(rows) == sorted(rows)",
    "zs = [5, 4]\nassert answer(zs) == sorted(zs) and zs == [5, 4]",
]
CHANGES = {
    "empties them": "which.clear(); return []",
    "empties what they hold": "[part.clear() for part in which if hasattr(part, 'clear')]\n"
    "    return sorted(which, key=str)[:0]",
    "remembers the first": "SEEN.append(which); return SEEN[0]",
    "answers by the number of calls": "SEEN.append(which); return [[1], ['a']][len(SEEN) % 2]",
    "raises from the second on": "SEEN.append(which)\n"
    "    if len(SEEN) > 1: raise AssertionError\n    return which",
}


@in_both_formats
def test_changing_the_arguments_and_remembering(as_row: AsRow, graded: Graded) -> None:
    for name, body in CHANGES.items():
        found = graded(as_row(INPUTS), f"SEEN = []\ndef answer(which):\n    {body}")
        assert (found.loaded, found.passed) == (True, 0), name
    assert graded(as_row(INPUTS), "answer = sorted").passed == len(INPUTS)


# Code that is no code


@in_both_formats
@pytest.mark.parametrize(
    "code",
    [
        "def answer(which): return 7 # \0",
        "def answer(which): return '\ud800'",
        "(" * 100_000,
        "x = " + "-" * 100_000 + "1",
        "x = " + "1+" * 100_000 + "1",
        "answer = 7",
        "async def answer(which): return 7",
        "def answer(which): yield 7",
        "class answer:\n    def __init__(self, which): pass\n    def __eq__(self, o): return True",
        "answer = __import__('unittest.mock').mock.MagicMock()",
        "import __main__\ndef answer(which): return __main__",
        "raise SystemExit(0)",
        "exit()",
        "",
        "print('[\"loaded\"]')",
        "#" * 3_000_000,
    ],
    ids=range(16),
)
def test_code_that_is_none(code: str, as_row: AsRow, graded: Graded) -> None:
    assert graded(as_row(["assert answer(1) == 7"]), code).passed == 0


@in_both_formats
def test_what_the_question_or_an_import_defines_is_not_the_codes(
    as_row: AsRow, graded: Graded
) -> None:
    """HumanEval's stub returns None, which some of its tests expect."""
    row = as_row(["assert answer(1) is None"])
    for code in ("x = 1", "pass", "# answer(1) is None"):
        found = graded(row, code)
        assert (found.loaded, found.passed) == (False, 0), code
    assert graded(row, "def answer(which): pass").passed == 1
    imported = {"text": "Write gcd(a, b).", "test_imports": ["from math import *"]}
    row = {**imported, "entry_point": "gcd", "test_list": ["assert gcd(4, 6) == 2"]}
    assert graded(row, "x = 1").passed == 0
    assert graded(row, "import math\ndef gcd(a, b): return math.gcd(a, b)").passed == 1


def test_of_several_blocks_the_last_that_defines_the_function_counts() -> None:
    right, wrong = "def answer(which): return 7", "def answer(which): return 8"
    said = [f"```python\n{code}\n```" for code in (right, wrong)]

    async def play() -> list[float]:
        env = Code(sandbox="local")
        rewards = []
        for text in (
            "\nor\n".join(said),
            "\nno:\n".join(reversed(said)),
            f"{said[0]}\n```\nx\n```",
        ):
            await env.areset(options={"row": mbpp(["assert answer(1) == 7"])})
            outcome = await env.act({"role": "assistant", "content": text})
            rewards.append(outcome.reward)
        await env.aclose()
        return rewards

    assert asyncio.run(play()) == [0.0, 1.0, 1.0]


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
