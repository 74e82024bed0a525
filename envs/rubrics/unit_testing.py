"""A rubric that grades code in the answer by the unit tests of the row, in boxes."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from gymnast.envs.boxes.box import EpisodeBox
from gymnast.envs.boxes.settings import BoxSettings, box_settings
from gymnast.envs.builtin.code.environment import code_in
from gymnast.envs.builtin.code.grading import Grade, GradingLimits, grade
from gymnast.envs.builtin.code.rows import CodeTask, code_task
from gymnast.envs.records.score import Score
from gymnast.envs.rubrics.reading import answer_of
from gymnast.envs.rubrics.rubric import Played, Rubric
from gymnast.errors import ConfigError, SandboxBroken, UserCodeError
from gymnast.sandboxes.contract.spec import SandboxSpec

_SPEC = SandboxSpec(timeout_s=10.0)


@dataclass(frozen=True)
class UnitTests(Rubric):
    """The share of the row's unit tests that the code in the answer passes, 0.0 to 1.0.

    Rows are those of `gymnast/Code-v0`: HumanEval's, MBPP's, and others with the same fields. The
    code is the last fenced block that defines the function, and runs in a fresh box; the tests run
    in another one, out of its reach. Code that breaks its box has failed.

    Reported beside it: `solved` (1 where all tests passed), `loaded` (1 where the code ran and
    defines the function), `broken` (1 where it broke its box).

    Args:
        sandbox: Where the boxes come from, as the setting `sandbox` of an environment says it.
        call_timeout_s: Wall time of one call of the function in a test, in seconds.
        tests_timeout_s: Wall time of all tests, in seconds, without waits for boxes.
    """

    name: ClassVar[str] = "unit_tests"
    sandbox: str | Mapping[str, Any] | None = None
    call_timeout_s: float = 4.0
    tests_timeout_s: float = 30.0

    def __post_init__(self) -> None:
        for name in ("call_timeout_s", "tests_timeout_s"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
                raise ConfigError(f"unit_tests: {name} must be a number > 0, got {value!r:.100}")
        _ = self._boxes

    @property
    def _boxes(self) -> BoxSettings:
        settings = box_settings("unit_tests", _SPEC, self.sandbox)
        assert settings is not None, "there is a spec"
        return settings

    async def score(self, episode: Played, environment: Any = None) -> Score:
        """The share of the tests."""
        task = code_task(episode.row)
        code = code_in(answer_of(episode), task.name)
        found, broken = Grade(0, task.tests.total, False), False
        if code.strip():
            try:
                found = await self._graded(task, code)
            except SandboxBroken:
                broken = True
            except UserCodeError as error:  # name the row
                raise UserCodeError(
                    "tests", episode.row, f"{error} (row: {dict(episode.row)!r:.500})"
                ) from None
        solved = found.passed == found.total > 0
        metrics = {"solved": solved, "loaded": found.loaded, "broken": broken}
        return Score({"": found.share}, {name: float(value) for name, value in metrics.items()})

    async def _graded(self, task: CodeTask, code: str) -> Grade:
        boxes = self._boxes
        box = EpisodeBox(boxes, lambda _: None, purpose="graded code")
        try:
            await box.fill()
            box.policy_acts()
            return await grade(
                task.tests,
                task.context,
                code,
                box,
                boxes.pool("tests of graded code").atake,
                GradingLimits(self.call_timeout_s, self.tests_timeout_s),
            )
        finally:
            await box.aclose()
