"""`tools_for` and `call_tool`: tools that differ from row to row, or are run somewhere else."""

import asyncio
import json
import re
import textwrap
import threading
from collections.abc import Callable
from typing import Any

import pytest

from gymnast.envs import Environment, check_env, tool
from gymnast.envs.environment.hooks import Hooks
from gymnast.errors import ConfigError, DataError, InfrastructureError, ToolDefinitionError
from gymnast.types import StopReason

ANSWER = {"role": "assistant", "content": "Done."}
PLUS = {
    "name": "plus",
    "description": "Add two numbers.",
    "parameters": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
    },
}

Calls = Callable[..., Any]
Play = Callable[..., Any]


def example(hook: str, **names: Any) -> dict[str, Any]:
    """What the example in a hook's documentation defines."""
    code = re.search(r"\n\n( +class .*?)\n\n {8}\w", getattr(Hooks, hook).__doc__, re.DOTALL)
    assert code is not None
    namespace = {"Environment": Environment, "tool": tool, **names}
    exec(textwrap.dedent(code[1]), namespace)
    return namespace


def names(env: Environment) -> list[str]:
    return [schema["function"]["name"] for schema in env.tools]


def test_the_example_of_tools_that_depend_on_the_row(calls: Calls, play: Play) -> None:
    env = example("tools_for")["Safe"]()
    for locked, offered in ((True, ["knock"]), (False, ["knock", "take"])):
        taken, _ = play(
            env,
            calls(("take", {"what": "ring"})),
            ANSWER,
            row={"prompt": "Get the ring.", "locked": locked},
        )
        assert names(env) == offered
        kinds = [error.kind for error in taken.info["errors"]]
        assert kinds == (["unknown_tool"] if locked else [])
        if not locked:
            assert taken.messages[0]["content"] == "You have the ring."


class Server:
    """Lists tools and runs them, as an MCP server does; here without a wire."""

    def __init__(self) -> None:
        self.log: list[str] = []

    async def list_tools(self) -> list[dict[str, Any]]:
        return [PLUS, {"name": "reset", "description": "Begin again."}]

    async def call_tool(self, name: str, arguments: dict[str, Any]) -> Any:
        self.log.append(name)
        return arguments["a"] + arguments["b"] if name == "plus" else "begun"

    async def close(self) -> None:
        self.log.append("closed")


def remote(server: Server) -> Any:
    async def connect(url: str) -> Server:
        server.log.append(url)
        return server

    return example("call_tool", connect=connect)["Remote"]()


def test_the_example_of_tools_that_a_server_lists_and_runs(calls: Calls, play: Play) -> None:
    server = Server()
    env = remote(server)
    row = {"prompt": "Go.", "url": "http://here"}
    first, second, _ = play(
        env,
        calls(("plus", {"a": "3", "b": 4}), ("plus", {"a": 1})),
        calls(("reset", {})),  # the server's, not the environment's
        ANSWER,
        row=row,
    )
    assert first.messages[0]["content"] == "7"
    assert [error.kind for error in first.info["errors"]] == ["bad_arguments"]
    assert second.messages[0]["content"] == "begun"
    assert server.log == ["http://here", "plus", "reset", "closed"]
    assert first.info["timings"]["tool/plus"] > 0


def test_a_row_names_some_of_the_tools_of_its_episode(play: Play) -> None:
    env = remote(Server())
    play(env, ANSWER, row={"prompt": "Go.", "url": "", "tools": ["plus"]})
    assert names(env) == ["plus"]
    with pytest.raises(DataError, match=r"names 'minus'.*The tools are: plus, reset"):
        env.reset(options={"row": {"prompt": "Go.", "url": "", "tools": ["minus"]}})


def test_stop_tools_are_named_as_ever(calls: Calls, play: Play) -> None:
    class Desk(Environment):
        def tools_for(self, row: Any) -> Any:
            return [submit]

    def submit(answer: str) -> str:
        """Hand in."""
        return f"received {answer}"

    (ended,) = play(Desk(stop_tools=["submit"]), calls(("submit", {"answer": "4"})))
    assert ended.info["stop_reason"] is StopReason.stop_tool
    with pytest.raises(ConfigError, match=r"stop_tools names 'submt'.*Did you mean 'submit'"):
        Desk(stop_tools=["submt"]).reset(options={"row": {"prompt": "Go."}})


def test_marked_functions_keep_their_options(calls: Calls, play: Play) -> None:
    @tool(stop=True, max_output_tokens=5)
    def finish() -> str:
        """Finish."""
        return "finished " * 50

    class Desk(Environment):
        async def tools_for(self, row: Any) -> Any:
            return [finish]

    (ended,) = play(Desk(), calls(("finish", {})))
    assert ended.info["stop_reason"] is StopReason.stop_tool
    assert "characters left out" in ended.messages[0]["content"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (None, r"Desk.tools_for returned None; it must return a list"),
        ({"plus": PLUS}, "must return a list"),
        ([PLUS], "description of 'plus', but nothing runs its calls. Override call_tool"),
        ([3], "Desk.tools_for: it was given 3, which is not a function with a name"),
        ([lambda: 3], "Desk.tools_for: .*is not a function with a name"),
        ([{**PLUS, "description": 3}], "Desk.tools_for: tool 'plus': description is 3"),
        ([Environment.close, Environment.close], "Desk.tools_for: tool 'close'"),
    ],
)
def test_what_cannot_be_a_tool_is_named(given: Any, words: str) -> None:
    class Desk(Environment):
        def tools_for(self, row: Any) -> Any:
            return given

    with pytest.raises(ToolDefinitionError, match=words):
        Desk().reset(options={"row": {"prompt": "Go."}})


def test_two_tools_of_one_name_are_named() -> None:
    class Desk(Environment):
        @tool
        def plus(self, a: int) -> int:
            """Add."""
            return a

        def tools_for(self, row: Any) -> Any:
            return [*super().tools_for(row), PLUS]

    with pytest.raises(ToolDefinitionError, match="two tools 'plus'"):
        Desk().reset(options={"row": {"prompt": "Go."}})


class Logged(Environment):
    """Does something around each call."""

    def setup(self, row: Any) -> None:
        self.log: list[Any] = []

    async def call_tool(self, name: str, arguments: dict[str, Any]) -> Any:
        self.log.append((name, arguments))
        try:
            return await super().call_tool(name, arguments)
        finally:
            self.log.append(name)

    @tool
    def double(self, number: int) -> int:
        """Double a number."""
        return 2 * number

    @tool
    async def later(self, name: str) -> str:
        """Say a name later."""
        await asyncio.sleep(0)
        return name

    @tool(timeout_s=0.05)
    async def sleep(self) -> str:
        """Sleep."""
        await asyncio.sleep(60)
        return "slept"

    @tool
    def crash(self) -> str:
        """Lose the server."""
        raise InfrastructureError("the server died")

    @tool
    def half(self, numbers: list[int]) -> float:
        """Divide a list."""
        return numbers / 2  # type: ignore[operator]

    def reward(self, episode: Any) -> float:
        return float(len(self.log))


def test_each_call_that_fits_goes_through_call_tool(calls: Calls, play: Play) -> None:
    env = Logged()
    turn, last = play(
        env,
        calls(
            ("double", {"number": "4"}),
            ("double", {}),
            ("later", {"name": "Ann"}),
            ("sleep", {}),
            ("triple", {"number": 4}),
        ),
        ANSWER,
    )
    texts = [message["content"] for message in turn.messages]
    assert texts[0] == "8" and texts[2] == "Ann"
    kinds = [error.kind for error in turn.info["errors"]]
    assert kinds == ["bad_arguments", "timeout", "unknown_tool"]
    assert env.log[:2] == [("double", {"number": 4}), "double"]
    assert last.reward == len(env.log) == 6


def test_a_sync_call_tool_runs_on_the_episodes_thread(calls: Calls, play: Play) -> None:
    class Sync(Environment):
        def setup(self, row: Any) -> None:
            self.thread = threading.current_thread()

        def tools_for(self, row: Any) -> Any:
            return [PLUS]

        def call_tool(self, name: str, arguments: dict[str, Any]) -> Any:
            return threading.current_thread() is self.thread

    turn, _ = play(Sync(), calls(("plus", {"a": 1, "b": 2})), ANSWER)
    assert turn.messages[0]["content"] == "true"


def test_what_breaks_under_call_tool_ends_the_episode(calls: Calls, play: Play) -> None:
    (ended,) = play(Logged(), calls(("crash", {})))
    assert ended.info["stop_reason"] is StopReason.error


def test_a_bug_of_a_tool_is_still_its_authors(calls: Calls, play: Play) -> None:
    turn, _ = play(Logged(), calls(("half", {"numbers": [1]})), ANSWER)
    (error,) = turn.info["errors"]
    assert error.kind == "bug" and "in call_tool" in error.traceback


def test_tools_are_in_the_prompt_and_every_one_is_checked(renderer: Any) -> None:
    class Desk(Environment):
        def tools_for(self, row: Any) -> Any:
            return [PLUS]

        def call_tool(self, name: str, arguments: dict[str, Any]) -> Any:
            return arguments["a"] + arguments["b"]

        def reward(self, episode: Any) -> float:
            return 1.0

    report = check_env(Desk(renderer, rows=[{"prompt": "Go."}]))
    assert '"plus"' in report.prompt
    assert [tried.call for tried in report.tools] == ["plus(a=1, b=1)"]


def test_what_a_tool_does_to_its_arguments_is_in_no_record(calls: Calls, play: Play) -> None:
    class Sorter(Environment):
        @tool
        def sort(self, names: list[Any], options: Any) -> str:
            """Sort names.

            Args:
                names: The names, in lists.
                options: How.
            """
            names[0].sort()
            options.clear()
            return " ".join(names[0])

    given = {"names": [["b", "a"]], "options": {"by": "name"}}
    env = Sorter()
    (outcome,) = play(env, calls(("sort", given)))
    assert outcome.messages[0]["content"] == "a b"
    (record,) = env.episode.calls
    assert record.call.arguments == {"names": [["b", "a"]], "options": {"by": "name"}}
    assert record.arguments == record.call.arguments == given


def test_arguments_that_are_nested_too_deeply_are_refused(calls: Calls, play: Play) -> None:
    class Taker(Environment):
        @tool
        def take(self, value: Any) -> str:
            """Take a value."""
            return "taken"

    for levels, answer in ((100, "taken"), (900, "Error: take(value: any): the arguments are ")):
        text = '{"value": ' + "[" * levels + "]" * levels + "}"
        (outcome,) = play(Taker(), calls(("take", text)))
        assert outcome.messages[0]["content"].startswith(answer)


def test_a_row_may_describe_its_tools_in_a_string_of_json() -> None:
    """As many chat datasets do; the names of descriptions count."""

    class Described(Environment):
        def tools_for(self, row: Any) -> Any:
            return json.loads(row["tools"])

        def call_tool(self, name: str, arguments: dict[str, Any]) -> Any:
            return 5

    env = Described()
    env.reset(options={"row": {"prompt": "Go.", "tools": json.dumps([PLUS])}})
    assert [schema["function"]["name"] for schema in env.tools] == ["plus"]
