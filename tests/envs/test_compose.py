"""compose: one environment class of several."""

import asyncio
import copy
import threading
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import pytest

from composed_fixtures import SHOP, TIMES, Notes, Offers, Times, a_call, played, says
from gymnast.envs import Environment, Mixture, Renderer, can_solve, check_env, compose, make, tool
from gymnast.errors import ConfigError, UserCodeError
from gymnast.sandboxes import SandboxSpec


def test_the_first_class_is_the_task_and_every_further_one_brings_its_tools() -> None:
    Both: Any = compose(Times, Notes)
    env = Both(first_line="Begin.", base=7)
    assert issubclass(Both, Times) and env.base == 7
    first, second = played(
        env,
        says(a_call("write", text="3 x 4"), a_call("read"), a_call("multiply", a=3, b=4)),
        says(text="12"),
    )
    assert [each["content"] for each in first.messages] == [
        "2 lines for 12",
        '["Begin.", "3 x 4"]',
        "12",
    ]
    assert env.messages[0]["content"] == "3 times 4?"  # of the row, not of Notes.setup
    assert first.reward == 0.25  # a hook that only Notes has
    assert second.reward == 1.0  # of Times, not of Notes
    assert second.info["metrics"]["lines"] == 2.0
    assert [each["function"]["name"] for each in env.tools] == [
        *("multiply", "write", "read", "leave", "count")
    ]
    [part] = env._parts
    assert part.log == ["setup 12", "cleanup"]
    env.close()


@pytest.mark.parametrize("classes", [(Times, Notes), (Times, Offers), ("gymnast/SQL-v0", Offers)])
def test_check_env_passes(classes: Any, renderer: Renderer) -> None:
    rows = {"rows": [TIMES]} if classes[0] is Times else {}
    env = make(compose(*classes), renderer, **rows)
    report = check_env(env)
    env.close()
    assert report.solved and all(tool.answer is not None for tool in report.tools)


def test_settings_are_known_by_name() -> None:
    with pytest.raises(ConfigError, match=r"no setting 'first_lin'.*first_line"):
        make(compose(Times, Notes), first_lin="x")


def test_rows_and_solutions_are_the_tasks_alone() -> None:
    class Solved(Environment):
        def sample_row(self, rng: Any) -> Any:
            return {"prompt": "Of another task."}

        def solve(self, row: Any) -> Any:
            return ["Solved."]

    class Plain(Environment):
        """Has neither."""

    env = compose(Plain, Solved)(rows=[TIMES])
    assert not can_solve(env)
    env.reset(seed=0)
    assert env.row == TIMES


@pytest.mark.parametrize("first_sets_up", [True, False])
def test_cleanup_of_all_runs_whichever_classes_have_a_setup(first_sets_up: bool) -> None:
    cleaned: list[str] = []

    class Quiet(Environment):
        def cleanup(self) -> None:
            cleaned.append("first")

    class Loud(Quiet):
        def setup(self, row: Any) -> None:
            self.begun = True

    class Last(Environment):
        def cleanup(self) -> None:
            cleaned.append("last")

    env = compose(Loud if first_sets_up else Quiet, Last)()
    played(env)
    env.close()
    assert cleaned == ["last", "first"]


def test_an_error_in_a_part_names_its_class_and_what_was_set_up_is_cleaned_up() -> None:
    log = []

    class Broken(Environment):
        def setup(self, row: Any) -> None:
            raise KeyError("question")

        def cleanup(self) -> None:
            log.append("Broken")

    class Last(Environment):
        def setup(self, row: Any) -> None:
            log.append("begun")

        def cleanup(self) -> None:
            log.append("Last")

    env = compose(Times, Notes, Broken, Last)()
    with pytest.raises(UserCodeError, match=r"Broken\.setup: KeyError: 'question'"):
        played(env)
    notes: Any = env._parts[0]  # type: ignore[attr-defined]
    assert log == ["Broken"] and notes.log == ["setup 12", "cleanup"]


def test_sync_hooks_and_tools_of_all_classes_run_on_one_thread() -> None:
    class Where(Environment):
        def setup(self, row: Any) -> None:
            self.thread = threading.get_ident()

        @tool
        def where(self) -> bool:
            """Where."""
            return self.thread == threading.get_ident()

    env: Any = compose(Times, Notes, Where)()
    [outcome] = played(env, says(a_call("where")))
    assert outcome.messages[0]["content"] == "true"
    assert env.thread == env._parts[1].thread != threading.get_ident()


def test_parts_draw_from_seeded_generators_of_their_own() -> None:
    class Dice(Environment):
        @tool
        def roll(self) -> int:
            """Roll."""
            return int(self.np_random.integers(10**9))

    class Other(Environment):
        @tool
        def other(self) -> int:
            """Roll."""
            return int(self.np_random.integers(10**9))

    env = compose(Times, Dice, Other)()
    rolls = [
        [each["content"] for each in played(env, says(a_call("roll"), a_call("other")))[0].messages]
        for _ in range(2)
    ]
    assert rolls[0] == rolls[1] and rolls[0][0] != rolls[0][1]


def test_a_method_of_the_task_that_calls_another_calls_its_own() -> None:
    """As SQL's `setup` calls `cleanup`, and its `reward` calls `metrics`."""
    env = compose("gymnast/SQL-v0", Notes)()
    query = a_call("sql", query="SELECT cents FROM prices")
    _, ended = played(env, says(query, a_call("write", text="3")), says(text="Done."), row=SHOP)
    assert ended.reward == 1.0
    metrics = ended.info["metrics"]
    assert (metrics["right"], metrics["lines"]) == (1.0, 1.0)
    assert env._parts[0].log == ["setup 12", "cleanup"]  # type: ignore[attr-defined]


def test_one_box_is_shared_and_different_ones_are_refused() -> None:
    class Boxed(Environment):
        sandbox_spec = SandboxSpec(timeout_s=5.0)

        def prepare_sandbox(self, sandbox: Any) -> None:
            sandbox.write_file("of_boxed", "1")

        async def reward(self, episode: Any) -> float:
            graded = await self.run_grader(["cat", "of_other"])
            return float(graded.stdout) if graded else 0.0

    class Other(Environment):
        sandbox_spec = SandboxSpec(timeout_s=6.0)

        def prepare_sandbox(self, sandbox: Any) -> None:
            sandbox.write_file("of_other", "2")

        @tool
        async def look(self) -> str:
            """Look."""
            return (await self.sandbox.aread_file("of_boxed")).decode()

    with pytest.raises(ConfigError, match=r"Boxed and Other have different sandbox_spec"):
        compose(Boxed, Other)
    assert compose(Times, Other).sandbox_spec == Other.sandbox_spec
    env = compose(Boxed, Other, sandbox_spec=Boxed.sandbox_spec)(sandbox="local")
    looked, graded = played(env, says(a_call("look")), says(text="Done."))
    assert looked.messages[0]["content"] == "1" and graded.reward == 2.0
    env.close()


def test_classes_are_named_once_and_all_at_once() -> None:
    with pytest.raises(ConfigError, match="Times alone"):
        compose(Times)
    with pytest.raises(ConfigError, match="Times twice"):
        compose(Times, Notes, Times)
    with pytest.raises(ConfigError, match="TimesWithNotes is composed already, of Times, Notes"):
        compose(compose(Times, Notes), Environment)
    with pytest.raises(ConfigError, match="Mixture is no class to compose"):
        compose(Times, Mixture)


def test_copies_and_pickles_go_on_with_their_own_parts() -> None:
    env: Any = compose(Times, Notes)()
    played(env, says(a_call("write", text="x")))
    for other in (copy.deepcopy(env), cloudpickle.loads(cloudpickle.dumps(env))):
        outcome = asyncio.run(other.act(says(a_call("write", text="y"))))
        assert outcome.messages[0]["content"] == "2 lines for 12"
    assert env._parts[0]._notes == ["x"]


def test_worked_turns_show_what_solve_of_the_task_plays(renderer: Renderer) -> None:
    rows = [TIMES, TIMES | {"prompt": "Three times 4?"}]
    env = make(compose(Times, Notes), renderer, rows=rows, worked_turns=1)
    env.reset(seed=0, options={"row": rows[0]})
    assert env.messages[0]["content"] != rows[0]["prompt"] and len(env.messages) > 3
    env.close()
