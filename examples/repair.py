"""Repairs as an environment: the agent of `coding_agent.py` plays in a box, hidden cases grade it.

The box holds the broken file, a test with one case, and the agent. The hidden cases stay here until
the program has ended. Then a fresh box, to which only the plain files of the first one come, is
given their arguments, never what is expected: that is compared here.
"""

import json
from pathlib import Path

from gymnast.envs import Program, call
from gymnast.sandboxes import SandboxSpec

AGENT = Path(__file__).with_name("coding_agent.py")
TEST = """\
from repair import {name}

result = {name}({argument!r})
assert result == {expected!r}, f"{name}({argument!r}) is {{result!r}}, not {expected!r}"
print("passed")
"""
GRADER = """\
import json, sys

scope, results = {"__name__": "repair"}, []
exec(open("repair.py").read(), scope)
for argument in json.load(sys.stdin):
    try:
        results.append(json.dumps(scope[sys.argv[1]](argument)))
    except Exception as error:
        results.append(type(error).__name__)
print(*results, sep="\\n")
"""

# What it is called, what it should do, how it does that, how it fails to, and what n is.
NUMBERS, LISTS = "a number", "a list"
TASKS = [
    ("add", "n plus {k}", "n + {k}", "n - {k}", NUMBERS),
    ("subtract", "n minus {k}", "n - {k}", "n + {k}", NUMBERS),
    ("multiply", "n times {k}", "n * {k}", "n + {k}", NUMBERS),
    ("remainder", "the remainder of n divided by {k}", "n % {k}", "n // {k}", NUMBERS),
    ("is_above", "whether n is greater than {k}", "n > {k}", "n < {k}", NUMBERS),
    ("is_below", "whether n is less than {k}", "n < {k}", "n > {k}", NUMBERS),
    ("divisible", "whether n is divisible by {k}", "n % {k} == 0", "n % {k} != 0", NUMBERS),
    ("first", "the first {k} items of n", "n[:{k}]", "n[{k}:]", LISTS),
    ("skip", "n without its first {k} items", "n[{k}:]", "n[:{k}]", LISTS),
    ("count", "how often {k} is in n", "n.count({k})", "n.index({k})", LISTS),
    ("largest", "the largest item of n times {k}", "max(n) * {k}", "min(n) * {k}", LISTS),
    ("smallest", "the smallest item of n times {k}", "min(n) * {k}", "max(n) * {k}", LISTS),
    ("total", "the sum of n plus {k}", "sum(n) + {k}", "len(n) + {k}", LISTS),
]  # fmt: skip


def function(name, text, body):
    """A file with one function."""
    return f"def {name}(n):\n    # Return {text}.\n    return {body}\n"


def outcome(body, argument):
    """What a function of `TASKS` returns, as JSON; None if it raises."""
    try:
        return json.dumps(eval(body, {"n": argument}))
    except (ArithmeticError, LookupError, ValueError):
        return None


class Repair(Program):
    """Repair a function in a file."""

    command = ("python3", "agent.py")
    sandbox_spec = SandboxSpec(memory_bytes=256 << 20, timeout_s=10)  # type: ignore[misc]
    shown = ("file",)

    def sample_row(self, rng):
        """A broken function, its repair, a case to show and others to hide."""
        name, text, right, wrong, kind = TASKS[int(rng.integers(len(TASKS)))]
        k = int(rng.integers(2, 6))
        text, right, wrong = (each.format(k=k) for each in (text, right, wrong))
        failing, working = {}, {}  # expected results by argument, both as JSON
        while len(failing) < 7 or len({*[*failing.values()][1:]}) == 1:  # no constant does
            argument = int(rng.integers(-10, 30))
            if kind == LISTS:
                argument = rng.integers(0, 7, size=int(rng.integers(4, 9))).tolist()
            expected = outcome(right, argument)
            cases = working if outcome(wrong, argument) == expected else failing
            cases[json.dumps(argument)] = expected
        (argument, expected), *hidden = failing.items()
        case = {"argument": json.loads(argument), "expected": json.loads(expected)}
        return {
            "prompt": f"The function {name} should return {text}.",
            "file": "repair.py",
            "name": name,
            "code": function(name, text, wrong),
            "test": TEST.format(name=name, **case),
            "repaired": function(name, text, right),
            "failing": hidden,  # with the broken function; those of `working` pass with it
            "working": list(working.items())[:4],
        }

    def prepare_sandbox(self, sandbox):
        """All that the box holds: none of the hidden cases, nor the repair."""
        for path, text in {
            "agent.py": AGENT.read_text(),
            "repair.py": self.row["code"],
            "test.py": self.row["test"],
        }.items():
            sandbox.write_file(path, text)

    def solve(self, row):
        """What a perfect model says."""
        yield call("write_file", path="repair.py", text=row["repaired"])
        yield call("run_test")
        yield "The test passes."

    async def reward(self, episode) -> float:
        """The share of the failing cases that now pass; 0.0 if one that had passed fails."""
        failing, working = self.row["failing"], self.row["working"]
        cases = [*failing, *working]
        arguments = f"[{', '.join(argument for argument, _ in cases)}]"
        command = ["python3", "-c", GRADER, self.row["name"]]
        graded = await self.run_grader(command, stdin=arguments)
        if graded is None or graded.verdict != "ok":
            return 0.0
        said = graded.stdout.splitlines()[-len(cases) :]
        right = [each == expected for each, (_, expected) in zip(said, cases, strict=False)]
        if len(right) < len(cases) or not all(right[len(failing) :]):
            return 0.0
        return sum(right[: len(failing)]) / len(failing)
