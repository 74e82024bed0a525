"""compose: one environment class of several."""

import asyncio
import copy
import threading
from typing import Any

import cloudpickle  # type: ignore[import-untyped]
import pytest

from gymnast.envs import Environment, Renderer, call, check_env, compose, make, tool
from gymnast.errors import ConfigError, ToolDefinitionError, UserCodeError
from gymnast.sandboxes import SandboxSpec

TIMES = {"prompt": "3 times 4?", "answer": 12}


class Times(Environment):
    """A product."""

    def __init__(self, renderer: Any = None, *, base: int = 10, **settings: Any) -> None:
        super().__init__(renderer, **settings)
        self.base = base

    def setup(self, row: Any) -> None:
        super().setup(row)
        self._notes = "of Times"
        self.thread = threading.get_ident()

    @tool
    def multiply(self, a: int, b: int) -> int:
        """Multiply.

        Args:
            a: One factor.
            b: Another.
        """
        assert self._notes == "of Times"
        return a * b

    def reward(self, episode: Any) -> float:
        return float(str(self.row["answer"]) in episode.answer)

    def solve(self, row: Any) -> Any:
        [result] = yield call("multiply", a=3, b=4)
        yield f"It is {result['content']}."


class Notes(Environment):
    """A notebook, with names that another class has too."""

    log: list[str]

    def __init__(self, renderer: Any = None, *, first_line: str = "", **settings: Any) -> None:
        super().__init__(renderer, **settings)
        self.first_line, self.log = first_line, []

    async def setup(self, row: Any) -> Any:
        await asyncio.sleep(0)
        self._notes = [self.first_line] if self.first_line else []
        self.log.append(f"setup {row['answer']}")
        return [{"role": "user", "content": "Write something down."}]

    @tool
    async def write(self, text: str) -> str:
        """Write a line.

        Args:
            text: The line.
        """
        self._notes.append(text)
        return f"{len(self._notes)} lines for {self.row['answer']}"

    @tool
    def read(self) -> list[str]:
        """Read all lines."""
        return self._notes

    @tool(stop=True)
    def leave(self) -> str:
        """Leave."""
        return "left"

    @staticmethod
    @tool
    def count(text: str) -> int:
        """Count letters."""
        return len(text)

    def turn_reward(self, turn: Any) -> float:
        return float(0.25 * sum(each.call.name == "write" for each in turn.calls))

    def metrics(self, episode: Any) -> dict[str, float]:
        return {"lines": float(len(self._notes))}

    def reward(self, episode: Any) -> float:
        return -5.0

    def cleanup(self) -> None:
        self.log.append("cleanup")


def says(*calls: Any, text: str = "") -> dict[str, Any]:
    tool_calls = [each["tool_calls"][0] if "tool_calls" in each else each for each in calls]
    return {"role": "assistant", "content": text, "tool_calls": tool_calls}


def played(env: Environment, *messages: Any, row: Any = TIMES) -> list[Any]:
    async def play() -> list[Any]:
        await env.areset(seed=3, options={"row": row})
        return [await env.act(message) for message in messages]

    return asyncio.run(play())


def a_call(name: str, **arguments: Any) -> Any:
    return {"id": name, "type": "function", "function": {"name": name, "arguments": arguments}}


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


def test_a_stop_tool_and_a_static_tool_of_a_part_are_what_they_were() -> None:
    env = compose(Times, Notes)(stop_tools=["read"])
    [outcome] = played(env, says(a_call("count", text="abc"), a_call("leave")))
    assert outcome.terminated and outcome.info["stop_reason"] == "stop_tool"
    assert [each["content"] for each in outcome.messages] == ["3", "left"]
    [outcome] = played(env, says(a_call("read")))
    assert outcome.info["stop_reason"] == "stop_tool"


def test_a_subclass_of_what_was_made_has_all_tools() -> None:
    class More(compose(Times, Notes)):  # type: ignore[misc]
        @tool
        def negate(self, a: int) -> int:
            """Negate."""
            return -a

    env = More()
    [outcome] = played(env, says(a_call("negate", a=2), a_call("write", text="x")))
    assert [each["content"] for each in outcome.messages] == ["-2", "1 lines for 12"]


def test_check_env_passes(renderer: Renderer) -> None:
    check_env(make(compose(Times, Notes), renderer, rows=[TIMES]))


def test_settings_are_known_by_name() -> None:
    with pytest.raises(ConfigError, match=r"no setting 'first_lin'.*first_line"):
        make(compose(Times, Notes), first_lin="x")


def test_two_tools_of_one_name_name_both_classes() -> None:
    class Other(Environment):
        @tool
        def multiply(self, text: str) -> str:
            """Repeat."""
            return text * 2

    with pytest.raises(ToolDefinitionError, match=r"Times and Other both have a tool 'multiply'"):
        compose(Times, Other)


def test_a_tool_does_not_replace_what_the_task_has() -> None:
    class Other(Environment):
        @tool
        def helper(self) -> str:
            """Help."""
            return ""

    class Helped(Times):
        def helper(self) -> None: ...

    with pytest.raises(ToolDefinitionError, match=r"'helper' of Other would replace Helped\.help"):
        compose(Helped, Other)


def test_tools_that_an_episode_chooses_are_merged_and_may_clash() -> None:
    class Remote(Environment):
        def tools_for(self, row: Any) -> Any:
            return [{"name": row["name"], "description": "Ask.", "parameters": {"type": "object"}}]

        async def call_tool(self, name: str, arguments: Any) -> str:
            return f"{name} of {type(self).__name__}"

    Both = compose(Times, Remote)
    env = Both()
    [outcome] = played(
        env, says(a_call("ask"), a_call("multiply", a=2, b=2)), row=TIMES | {"name": "ask"}
    )
    assert [each["content"] for each in outcome.messages] == ["ask of Remote", "4"]
    with pytest.raises(ToolDefinitionError, match="Times and Remote both have a tool 'multiply'"):
        played(env, row=TIMES | {"name": "multiply"})


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


def test_one_box_is_shared_and_different_ones_are_refused() -> None:
    class Boxed(Environment):
        sandbox_spec = SandboxSpec(timeout_s=5.0)

        def prepare_sandbox(self, sandbox: Any) -> None:
            sandbox.write_file("of_boxed", "1")

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
    [outcome] = played(env, says(a_call("look")))
    assert outcome.messages[0]["content"] == "1"
    env.close()


def test_classes_are_named_once_and_all_at_once() -> None:
    with pytest.raises(ConfigError, match="Times alone"):
        compose(Times)
    with pytest.raises(ConfigError, match="Times twice"):
        compose(Times, Notes, Times)
    with pytest.raises(ConfigError, match="TimesWithNotes is composed already, of Times, Notes"):
        compose(compose(Times, Notes), Environment)


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
