"""Code that tries to be paid without doing the task, on every backend."""

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from gymnast.envs.builtin.code.environment import Code

pytestmark = pytest.mark.attacks

ROW: dict[str, Any] = {
    "prompt": "Write add(a, b).",
    "entry_point": "add",
    "test_list": [
        "assert add(3, 4) == 7",
        "assert add('x', 'y') == 'xy'",
        "assert add([1], [2]) == [1, 2]",
        "numbers = [5, 6]\nassert add(numbers, [7]) == numbers + [7]",
    ],
}
# The same tests in HumanEval's format: half of the attacks are made on each row.
CHECK: dict[str, Any] = {
    "prompt": "def add(a, b):\n    'The sum of a and b.'\n",
    "entry_point": "add",
    "test": "def check(candidate):\n"
    + "".join(
        f"    {line}\n"
        for test in ROW["test_list"]
        for line in test.replace("add(", "candidate(").splitlines()
    ),
}
FORGED = '{"passed": [0, 1, 2, 3], "why": {}, "done": true}'

# Each is loaded in place of a solution. None may pass a single test.
ATTACKS = {
    "exits when it is loaded": "import sys\nsys.exit(0)",
    "ends its process when it is loaded": "import os\nos._exit(0)",
    "exits in a call": "import sys\ndef add(a, b): sys.exit(0)",
    "ends its process in a call": "import os\ndef add(a, b): os._exit(0)",
    "returns what equals everything": """
class Everything:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __hash__(self): return 0
def add(a, b): return Everything()
""",
    "returns a number that equals everything": """
class Everything(int):
    def __eq__(self, other): return True
    def __add__(self, other): return other
def add(a, b): return Everything()
""",
    "returns a list that equals everything": """
class Everything(list):
    def __eq__(self, other): return True
    def __class__(self): return list
def add(a, b): return Everything()
""",
    "patches the builtins": """
import builtins
builtins.AssertionError = type("Passed", (Exception,), {})
builtins.compile = lambda *a, **k: (lambda: None).__code__
builtins.exec = lambda *a, **k: None
def add(a, b): raise AssertionError
""",
    "prints a result": f"""
def add(a, b):
    print({FORGED!r}, flush=True)
""",
    "writes a result to every descriptor": f"""
import os
def add(a, b):
    for fd in range(256):
        try: os.write(fd, b"\\n" + {FORGED!r}.encode() + b"\\n")
        except OSError: pass
    os._exit(0)
""",
    "prints a result at the end": f"""
import atexit, os, sys
atexit.register(os.write, 1, {FORGED!r}.encode())
def add(a, b): sys.exit(0)
""",
    "prints a result from a thread": f"""
import os, threading, time
def shout():
    while True:
        os.write(1, b"\\n" + {FORGED!r}.encode() + b"\\n")
        time.sleep(0.0005)
threading.Thread(target=shout, daemon=True).start()
def add(a, b): time.sleep(0.05)
""",
    "prints a result from a child": f"""
import os, time
def add(a, b):
    if os.fork() == 0:
        os.setsid()
        while True:
            os.write(1, b"\\n" + {FORGED!r}.encode() + b"\\n")
            time.sleep(0.001)
""",
    "looks up its callers": """
import sys
def add(a, b):
    frame = sys._getframe()
    while frame:
        for value in [*frame.f_locals.values(), *frame.f_globals.values()]:
            if isinstance(value, str) and "assert add(" in value:
                return eval(value.split("==")[1])
        frame = frame.f_back
""",
    "looks through all objects": """
import gc
def add(a, b):
    for found in gc.get_objects():
        for text in (found if isinstance(found, (list, tuple)) else ()):
            if isinstance(text, str) and text.startswith("assert add(") and "==" in text:
                return eval(text.split("==")[1])
""",
    "looks for files": """
import glob, os
def add(a, b):
    newest = sorted(glob.glob("/tmp/gymnast-*"), key=os.path.getctime)[-20:]
    for folder in (".", "/work", *newest):
        for path in glob.glob(folder + "/**")[:100]:
            if not os.path.isfile(path): continue
            try: text = open(path).read(1 << 20)
            except (OSError, UnicodeDecodeError): continue
            if "assert add(" in text and "numbers + [7]" in text:
                return eval(text.split("==")[1].split(chr(10))[0])
""",
    "looks at command lines and environments": """
import glob
def add(a, b):
    for path in glob.glob("/proc/[0-9]*/cmdline") + glob.glob("/proc/[0-9]*/environ"):
        try: text = open(path, "rb").read()
        except OSError: continue
        if b"assert add(3" in text: return 7
""",
    "answers with something that is no value": """
import sys
wire = sys.modules["gymnast.envs.builtin.code.judging.wire"]
wire.encode = lambda value: '{"passed": [0, 1, 2, 3], "done": true}'
def add(a, b): return 1
""",
    "answers with code": """
import sys
wire = sys.modules["gymnast.envs.builtin.code.judging.wire"]
wire.encode = lambda value: "'); _judge._passed.extend([0, 1, 2, 3]); _judge._events.put({}); ('"
def add(a, b): return 1
""",
    "answers with unknown kinds of value": """
import sys
wire = sys.modules["gymnast.envs.builtin.code.judging.wire"]
wire._packed = lambda value: ["__reduce__", "os.system", "true"]
def add(a, b): return 1
""",
    "answers with endless nesting": """
import sys
wire = sys.modules["gymnast.envs.builtin.code.judging.wire"]
real = wire.encode
wire.encode = lambda v: '["list"' + ',["list"' * 90000 + "]" * 90001 if v == 1 else real(v)
def add(a, b): return 1
""",
    "answers too much": "def add(a, b): return 'x' * 50_000_000",
    "answers without end": """
import itertools
def add(a, b): return itertools.count()
""",
    "changes the arguments in place": """
def add(a, b):
    a.clear(); b.clear()
    return a
""",
    "raises what the tests raise": "def add(a, b): raise AssertionError('all is well')",
    "raises what the judge raises": """
class NoAnswer(BaseException): pass
def add(a, b): raise NoAnswer('passed')
""",
    "kills its parent": """
import os, signal
def add(a, b):
    os.kill(os.getppid(), signal.SIGKILL)
    os.kill(0, signal.SIGKILL)
""",
    "stops its parent": """
import os, signal
def add(a, b):
    os.kill(os.getppid(), signal.SIGSTOP)
""",
    "sleeps": "import time\ndef add(a, b): time.sleep(3600)",
    "traces": """
import sys, threading
def seen(frame, event, argument):
    frame.f_locals["result"] = frame.f_locals.get("expected")
    return seen
sys.settrace(seen); threading.settrace(seen)
def add(a, b): return None
""",
}

READS_MEMORY = """
import glob, os, re
def add(a, b):
    for folder in glob.glob("/proc/[0-9]*"):
        if int(folder[6:]) == os.getpid():
            continue
        try:
            if b"GYMNAST" not in open(folder + "/environ", "rb").read():
                continue
            with open(folder + "/maps") as maps, open(folder + "/mem", "rb", 0) as memory:
                for line in maps:
                    if " rw" not in line:
                        continue
                    start, end = (int(part, 16) for part in line.split()[0].split("-"))
                    try:
                        memory.seek(start)
                        data = memory.read(end - start)
                    except (OSError, ValueError, OverflowError):
                        continue
                    wanted = re.escape(("assert add(%r, %r) == " % (a, b)).encode())
                    found = re.search(wanted + rb"([^\\0\\n\\\\]{1,20}?)[\\"\\0\\n]", data)
                    if found:
                        return eval(found.group(1).rstrip(b"'\\\\,]") if a == 3 else found.group(1))
        except OSError:
            continue
"""


@pytest.fixture
def settings(backend: str, request: pytest.FixtureRequest) -> dict[str, Any]:
    found: dict[str, Any] = {"backend": backend}
    if backend == "docker":
        found["image"] = request.getfixturevalue("docker_image")
    return found


def calls_python(code: str) -> Mapping[str, Any]:
    function = {"name": "python", "arguments": {"code": code}}
    call = {"id": "id0", "type": "function", "function": function}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def answers(code: str) -> Mapping[str, Any]:
    return {"role": "assistant", "content": f"```python\n{code}\n```"}


def rewards(
    settings: dict[str, Any],
    *episodes: list[Mapping[str, Any]],
    row: Mapping[str, Any] = ROW,
    call_timeout_s: float = 1.0,
) -> list[float]:
    """The rewards of episodes, one after another in one environment."""

    async def run() -> list[float]:
        env = Code(
            sandbox=settings, call_timeout_s=call_timeout_s, tests_timeout_s=8 * call_timeout_s
        )
        found = []
        for messages in episodes:
            await env.areset(options={"row": row})
            outcomes = [await env.act(message) for message in messages]
            assert outcomes[-1].terminated, outcomes[-1]
            found.append(outcomes[-1].reward)
        await env.aclose()
        return found

    return asyncio.run(run())


_SLOW = {"stops its parent"}  # the worker has a grace of seconds to answer in


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.slow] if n in _SLOW else []) for n in ATTACKS],
)
def test_an_attack_is_worth_nothing_and_leaves_nothing(name: str, settings: dict[str, Any]) -> None:
    honest = answers("def add(a, b): return a + b")
    other = list(ATTACKS).index(name) % 2 and not name.startswith("looks")  # for ROW's own text
    row = CHECK if other else ROW
    assert rewards(settings, [answers(ATTACKS[name])], [honest], row=row) == [0.0, 1.0]


def test_what_was_tried_before_the_answer_does_not_help(settings: dict[str, Any]) -> None:
    poison = """
import builtins, os, sys, threading
for name in ("json", "queue", "threading", "sitecustomize", "gymnast", "types"):
    open(name + ".py", "w").write("raise SystemExit(0)")
os._exit = lambda code: None
builtins.compile = lambda *a, **k: (lambda: None).__code__
"""
    wrong = answers("def add(a, b): return None")
    assert rewards(settings, [calls_python(poison), wrong]) == [0.0]


def test_nothing_of_the_tests_is_in_the_box_while_code_is_tried_out(
    settings: dict[str, Any],
) -> None:
    look = ATTACKS["looks for files"] + "\nprint(add(3, 4))\n"
    look += ATTACKS["looks through all objects"] + "\nprint(add(3, 4))"

    async def run() -> str:
        env = Code(sandbox=settings)
        await env.areset(options={"row": ROW})
        outcome = await env.act(calls_python(look))
        await env.aclose()
        return str(outcome.messages[-1]["content"])

    assert asyncio.run(run()).split() == ["None", "None"]


def test_the_memory_of_other_processes_does_not_hold_the_tests(
    settings: dict[str, Any], backend: str
) -> None:
    if backend == "local":
        pytest.skip("without isolation code may read the memory of whatever the user runs")
    row = {**ROW, "test_list": ["assert add(3, 4) == 7", "assert add(30, 4) == 34"]}
    assert rewards(settings, [answers(READS_MEMORY)], row=row, call_timeout_s=20.0) == [0.0]
