"""The tools of composed classes: each class offers its own, and runs their calls."""

import asyncio
from typing import Any

import pytest

from composed_fixtures import SHOP, TIMES, Notes, Offers, Times, a_call, played, says
from gymnast.envs import Environment, compose, make, tool
from gymnast.errors import DataError, ToolDefinitionError


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


def test_a_database_is_a_tool_of_another_task() -> None:
    env = make(compose(Times, "gymnast/SQL-v0"), timeout_s=1.0)
    looked, answered = played(
        env,
        says(
            a_call("sql", query="SELECT cents FROM prices WHERE fruit = 'apple'"),
            a_call("multiply", a=3, b=4),
        ),
        says(text="12 cents"),
        row=SHOP,
    )
    assert [each["content"] for each in looked.messages] == ["cents\n3\n(1 row)", "12"]
    assert env.messages[0]["content"] == SHOP["prompt"]
    assert answered.reward == 1.0 and answered.info["metrics"]["ran"] == 1.0
    assert env._parts[0]._database is None  # type: ignore[attr-defined]  # cleaned up
    with pytest.raises(DataError, match=r"SQL: the row .* has no 'schema'"):
        played(env)


def test_a_server_is_connected_and_left_by_its_part() -> None:
    class Server(Environment):
        """As a class is whose tools are on a server: all of it async, and tools described."""

        async def setup(self, row: Any) -> None:
            await asyncio.sleep(0)
            self.calls: list[str] = []

        async def tools_for(self, row: Any) -> Any:
            schema = {"type": "object", "properties": {"zone": {"type": "string"}}}
            return [{"name": "time", "description": "The time.", "parameters": schema}]

        async def call_tool(self, name: str, arguments: Any) -> Any:
            await asyncio.sleep(0)
            self.calls.append(name)
            return {"zone": arguments["zone"], "time": "12:00"}

        async def cleanup(self) -> None:
            await asyncio.sleep(0)
            self.calls.append("left")

    env: Any = compose(Times, Server)(stop_tools=["time"])
    [outcome] = played(env, says(a_call("multiply", a=2, b=2), a_call("time", zone="UTC")))
    assert [each["content"] for each in outcome.messages] == [
        "4",
        '{"zone": "UTC", "time": "12:00"}',
    ]
    assert outcome.info["stop_reason"] == "stop_tool"
    assert env._parts[0].calls == ["time", "left"]


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


@pytest.mark.parametrize("classes", [(Times, Offers), (Offers, Times), (Offers, Notes)])
def test_each_class_offers_its_own_tools_and_runs_their_calls(classes: Any) -> None:
    env = compose(*classes)()
    calls = {"first": "1", "second": "2", "ask": "asked"}
    calls |= {"read": "[]"} if Notes in classes else {}
    [outcome] = played(env, says(*map(a_call, calls)))
    assert [each["content"] for each in outcome.messages] == [*calls.values()]
    others = [name for cls in classes if cls is not Offers for name in cls._class_tools]
    names = [each["function"]["name"] for each in env.tools]
    assert sorted(names) == sorted(["first", "second", "ask", *others])


def test_a_class_may_leave_out_tools_of_its_own_and_no_others() -> None:
    class Few(Notes):
        def tools_for(self, row: Any) -> Any:
            return [each for each in super().tools_for(row) if each.name == "read"]

    env = compose(Times, Few)()
    played(env)
    assert [each["function"]["name"] for each in env.tools] == ["multiply", "read"]


def test_tools_that_a_class_offers_when_it_responds_are_run_by_it() -> None:
    class Guide(Environment):
        def respond(self, message: Any) -> Any:
            there = {"name": "there", "description": "Go there.", "parameters": {"type": "object"}}
            return [{"role": "user", "content": "Go on.", "tools": [there]}]

        async def call_tool(self, name: str, arguments: Any) -> str:
            return f"{name}, says the guide"

    env = compose(Times, Guide)()
    _, outcome = played(env, says(text="Where to?"), says(a_call("there")))
    assert outcome.messages[0]["content"] == "there, says the guide"
