"""Grading code by tests that it can neither read nor change: the host between two boxes.

The tests run in one box, the code in another. When a test calls a function of the code, the host
carries the arguments over and the result back, as texts of plain values (`judging/wire.py`). The
code sees nothing of a test but arguments, and can answer nothing but values. Neither runs on the
host, which does not even decode what the code sent.
"""

import json
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from gymnast.envs.builtin.code.judging import wire
from gymnast.errors import SandboxBroken, SandboxDead, UserCodeError
from gymnast.sandboxes.contract.base import Sandbox
from gymnast.sandboxes.contract.module_program import module_program, module_sources
from gymnast.sandboxes.contract.spec import ExecResult
from gymnast.threads import in_background
from gymnast.visible import visible_line

# Boxes for tests are waited for while others are held. So they have a pool of their own: nobody
# waits in a circle.

Take = Callable[[], Awaitable[Sandbox]]

_LEAST_S = 0.05  # the time that a call gets, however late it is
_OUTPUT_BYTES = 3 * wire.MAX_CHARACTERS


@dataclass(frozen=True)
class Tests:
    """The tests that grade code.

    Attributes:
        context: Python that is run before the tests, beside them.
        names: The functions that they call and the code must define.
        steps: Pieces of Python, each with whether it is a test that counts; the others prepare the
            tests after them.
    """

    __test__ = False  # pytest must not collect it

    context: str
    names: tuple[str, ...]
    steps: tuple[tuple[str, bool], ...]

    @property
    def total(self) -> int:
        """How many tests there are."""
        return sum(counts for _, counts in self.steps)


@dataclass(frozen=True)
class Grade:
    """The outcome of the tests.

    Attributes:
        passed: How many tests passed.
        total: How many tests there are.
        loaded: Whether the code ran and defines the functions that it must.
        why: Why the first failed test, or loading the code, failed; "" if all passed.
    """

    passed: int
    total: int
    loaded: bool
    why: str = ""

    @property
    def share(self) -> float:
        """The share of the tests that passed, 0 to 1."""
        return self.passed / self.total if self.total else 0.0


@dataclass(frozen=True)
class GradingLimits:
    """How long the code may take.

    Attributes:
        call_s: Wall time of one call of it, and of loading it, in seconds.
        total_s: Wall time of all tests of an episode, in seconds, without waits for boxes; tests
            that are left over have failed.
    """

    call_s: float = 4.0
    total_s: float = 30.0


async def grade(
    tests: Tests, context: str, code: str, box: Sandbox, take: Take, limits: GradingLimits
) -> Grade:
    """Run the tests on the code.

    Args:
        tests: The tests.
        context: Python that the code may rely on, run before it.
        code: What the policy wrote.
        box: Where the code runs; its current session ends.
        take: Takes a fresh box for the tests.
        limits: How long it may take.

    Raises:
        UserCodeError: The tests do not run, whatever the code is.
        SandboxBroken: The code broke its own box, or the box of the tests by an answer.
        SandboxError: A box broke for another reason, or none is available.
    """
    clock = _Clock(limits.total_s)
    candidate = _CandidateSide(tests, context, code, box, limits.call_s, clock)
    answer = await candidate.load()
    if answer != _LOADED:
        return Grade(0, tests.total, False, answer[:300])
    with clock.stopped():
        judge = await take()
    try:
        return await _run(tests, judge, candidate, clock)
    finally:
        await judge.aclose()


class _Clock:
    """The time that is left. It stands still during waits for boxes, which the code cannot help."""

    def __init__(self, seconds: float) -> None:
        self._ends = time.monotonic() + seconds

    @property
    def left_s(self) -> float:
        return self._ends - time.monotonic()

    @contextmanager
    def stopped(self) -> Iterator[None]:
        begun = time.monotonic()
        try:
            yield
        finally:
            self._ends += time.monotonic() - begun


async def _run(tests: Tests, judge: Sandbox, candidate: "_CandidateSide", clock: _Clock) -> Grade:
    arguments = (tests.context, list(tests.names), list(tests.steps))
    program = _program("judge") + f"_judge = judge.Judge(*{arguments!r})\n_judge.start()\n"
    event: dict[str, Any] = {"passed": [], "why": {}}
    while True:
        left = clock.left_s
        if left <= 0:
            return _grade(tests, event, "out of time")
        result = await judge.apython(program, timeout_s=left, max_output_bytes=_OUTPUT_BYTES)
        if result.verdict == "dead":
            why = f"the box of the tests broke: {visible_line(result.stderr[-300:])}"
            perhaps_by_code = candidate.answered and not await in_background(judge.engine_lost)
            raise SandboxBroken(why) if perhaps_by_code else SandboxDead(why)
        line = _last_line(result)
        if line is None:
            return _grade(tests, event, f"the tests ended early ({result.verdict})")
        event = json.loads(line)
        if "broken" in event:
            raise UserCodeError("tests", None, f"the tests cannot be run: {event['broken']}")
        if "done" in event:
            return _grade(tests, event, "")
        if "call" in event:
            program = f"_judge.resume({await candidate.call(event['call'])!r})"
        else:
            program = "_judge.wait()"


def _grade(tests: Tests, event: dict[str, Any], why: str) -> Grade:
    passed = len(event["passed"])
    first = next(iter(event["why"].values()), why)
    return Grade(passed, tests.total, True, first if passed < tests.total else "")


_LOADED = wire.encode(["loaded"])


class _CandidateSide:
    """The code in its box, loaded again when its process has ended.

    Attributes:
        answered: Whether it has been called, so that its answers may have reached the tests.
    """

    def __init__(
        self,
        tests: Tests,
        context: str,
        code: str,
        box: Sandbox,
        call_s: float,
        clock: _Clock,
    ) -> None:
        self.answered = False
        arguments = (context, code, list(tests.names))
        self._program = _program("candidate") + f"_code = candidate.Candidate(*{arguments!r})\n"
        self._box = box
        self._call_s, self._clock = call_s, clock
        self._loaded = False

    async def load(self) -> str:
        """Load the code in a new session; return its answer."""
        await self._box.apython("import os; os._exit(0)", timeout_s=self._call_s)
        answer = await self._ask(self._program)
        self._loaded = answer == _LOADED
        return answer

    async def call(self, request: str) -> str:
        """The outcome of a call, as a text for the judge."""
        self.answered = True
        if not self._loaded:
            answer = await self.load()
            if not self._loaded:
                return answer
        return await self._ask(f"_code.call({request!r})")

    async def _ask(self, program: str) -> str:
        left = max(_LEAST_S, min(self._call_s, self._clock.left_s))
        result = await self._box.apython(program, timeout_s=left, max_output_bytes=_OUTPUT_BYTES)
        if result.verdict == "dead" or not self._box.alive:
            errors = visible_line(result.stderr[-300:])
            raise SandboxDead(f"the box of graded code broke: {errors}")
        return self._answer(result)

    def _answer(self, result: ExecResult) -> str:
        line = _last_line(result)
        if line is not None and result.verdict == "ok" and line.isascii():
            return line
        self._loaded = False
        why = "out of time" if result.verdict == "timeout" else f"it ended ({result.verdict})"
        return _no_answer(why)


def _last_line(result: ExecResult) -> str | None:
    """The answer of a program of `judging/`: its last line of output, unless that was cut."""
    lines = result.stdout.rstrip("\n").rsplit("\n", 1)
    return None if result.truncated or not lines[-1] or result.exit_code != 0 else lines[-1]


def _no_answer(why: str) -> str:
    return wire.encode(["nothing", "no answer", why])


@cache
def _program(last: str) -> str:
    """Python that defines a module of `judging/` in a box."""
    folder = Path(__file__).parent / "judging"
    sources = module_sources(folder, ("wire", "equality", last))
    return module_program("gymnast.envs.builtin.code.judging", sources)
