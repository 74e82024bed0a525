"""Cheats by class, each in both formats of rows: worth nothing, where an honest solution gets all.

Lies about values are in `test_code_lies.py`. The wall between boxes is attacked in
`test_code_tampering.py`; single rows whose tests could be got around are in `test_code_cheats.py`.
"""

import asyncio

import pytest

from code_fixtures import AsRow, Graded, assert_all, assert_worthless, in_both_formats, mbpp
from gymnast.envs.builtin.code.environment import Code

pytestmark = pytest.mark.attacks

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
module = sys.modules["gymnast.envs.builtin.code.judging.candidate"]
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
