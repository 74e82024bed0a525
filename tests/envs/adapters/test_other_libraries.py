"""Tools of LangChain, smolagents and the OpenAI Agents SDK as they are, in an environment."""

import asyncio
import json
import threading
from collections.abc import Callable
from typing import Any

import pytest

from gymnast.envs import Environment, Outcome
from gymnast.errors import ToolDefinitionError
from gymnast.types import StopReason

pytestmark = [
    pytest.mark.adapters,
    pytest.mark.filterwarnings("ignore:Function .* has decorators other than @tool:UserWarning"),
]
Calls = Callable[..., dict[str, Any]]
Play = Callable[..., list[Outcome]]


def price(fruit: str, count: int = 1) -> str:
    """Look up a price.

    Args:
        fruit: Its name.
        count: How many.
    """
    if fruit == "stone":
        raise ValueError("a stone is no fruit")
    return f"{fruit}: {3 * count} cents"


async def later(fruit: str) -> str:
    """Look up a price, later.

    Args:
        fruit: Its name.
    """
    return f"{fruit}: 4 cents"


def langchain(*functions: Any) -> list[Any]:
    made = pytest.importorskip("langchain_core.tools").tool
    return [made(parse_docstring=True)(function) for function in functions]


def smolagents(*functions: Any) -> list[Any]:
    return [pytest.importorskip("smolagents").tool(function) for function in functions]


def openai_agents(*functions: Any) -> list[Any]:
    made = pytest.importorskip("agents.tool").function_tool
    return [made(function, strict_mode=False) for function in functions]


LIBRARIES: dict[str, Callable[..., list[Any]]] = {
    "langchain": langchain,
    "smolagents": smolagents,
    "openai_agents": openai_agents,
}


def named(fruit: str) -> str:
    """A plain function beside them."""
    return fruit.upper()


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_tool_is_offered_and_run_as_it_is(library: str, calls: Calls, play: Play) -> None:
    tools = LIBRARIES[library](price)
    env = Environment.from_tools([*tools, named], reward=lambda episode: 1.0)()
    pear, stone = {"fruit": "pear", "count": 2}, {"fruit": "stone"}
    (outcome,) = play(env, calls(("price", pear), ("price", {"fruit": "fig"}), ("price", stone)))
    first, second, third = (message["content"] for message in outcome.messages)
    assert first == "pear: 6 cents"
    assert second == "fig: 3 cents"
    assert "a stone is no fruit" in third or "An error occurred" in third
    functions = {tool["function"]["name"]: tool["function"] for tool in env.tools}
    assert list(functions) == ["named", "price"]
    shown = functions["price"]
    assert shown["description"] == "Look up a price."
    assert shown["parameters"]["required"] == ["fruit"]
    assert shown["parameters"]["properties"]["fruit"]["description"] == "Its name."
    assert shown["parameters"]["properties"]["count"]["type"] == "integer"
    json.dumps(env.tools)


@pytest.mark.parametrize("library", LIBRARIES)
def test_wrong_arguments_are_told_before_the_tool_runs(
    library: str, calls: Calls, play: Play
) -> None:
    env = Environment.from_tools(LIBRARIES[library](price))()
    (outcome,) = play(env, calls(("price", {"fruit": "fig", "count": "many"}), ("price", {})))
    assert [error.kind for error in outcome.info["errors"]] == ["bad_arguments"] * 2
    assert 'argument "fruit" is missing' in outcome.messages[1]["content"]


@pytest.mark.parametrize("library", ["langchain", "openai_agents"])
def test_an_async_tool_is_awaited(library: str, calls: Calls, play: Play) -> None:
    env = Environment.from_tools(LIBRARIES[library](later))()
    (outcome,) = play(env, calls(("later", {"fruit": "fig"})))
    assert outcome.messages[0]["content"] == "fig: 4 cents"


@pytest.mark.parametrize("library", LIBRARIES)
def test_tools_for_returns_them_and_they_may_stop(library: str, calls: Calls, play: Play) -> None:
    tools = LIBRARIES[library](price)

    class Shop(Environment):
        def tools_for(self, row: Any) -> Any:
            return tools

    (outcome,) = play(Shop(stop_tools=["price"]), calls(("price", {"fruit": "fig"})))
    assert outcome.info["stop_reason"] is StopReason.stop_tool
    env = Environment.from_tools(tools, stop_tools=["price"])()
    (outcome,) = play(env, calls(("price", {"fruit": "fig"})))
    assert outcome.info["stop_reason"] is StopReason.stop_tool


class Fruit:
    """What JSON cannot hold."""

    def __str__(self) -> str:
        return "a pear"


def misbehave(how: str) -> Any:
    """Do something wrong.

    Args:
        how: In which way.
    """
    if how == "raise":
        raise RuntimeError("broken")
    if how == "hang":
        ENDED.append(HANGING.wait(30))
    return {"huge": "on " * 10**6, "odd": Fruit()}.get(how, how)


HANGING, ENDED = threading.Event(), list[bool]()


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_tool_that_misbehaves_harms_its_own_episode_alone(
    library: str, calls: Calls, play: Play
) -> None:
    (tool,) = LIBRARIES[library](misbehave)
    env = Environment.from_tools([tool])()
    wrong = [calls(("misbehave", {"how": how})) for how in ("raise", "huge", "odd", "well")]
    raised, huge, odd, well = (o.messages[0]["content"] for o in play(env, *wrong))
    assert "broken" in raised or "An error occurred" in raised
    assert huge == "on " * 10**6 and odd == "a pear" and well == "well"
    short = Environment.from_tools([tool])(episode_timeout_s=1)
    ended = len(ENDED)
    try:
        (outcome,) = play(short, calls(("misbehave", {"how": "hang"})))
        assert len(ENDED) == ended  # the loop waited for nothing
    finally:
        HANGING.set()
    assert outcome.info["stop_reason"] is StopReason.timeout
    HANGING.clear()
    (outcome,) = play(env, calls(("misbehave", {"how": "well"})))
    assert outcome.messages[0]["content"] == "well"


@pytest.mark.parametrize("library", LIBRARIES)
def test_a_thousand_episodes_leave_nothing_behind(library: str, calls: Calls) -> None:
    env = Environment.from_tools(LIBRARIES[library](price), reward=lambda episode: 1.0)()

    async def run() -> list[tuple[str, float]]:
        said = []
        for count in range(1000):
            await env.areset(options={"row": {"prompt": "How much?"}})
            outcome = await env.act(calls(("price", {"fruit": "fig", "count": count})))
            last = await env.act({"role": "assistant", "content": "There."})
            said.append((str(outcome.messages[0]["content"]), last.reward))
        return said

    assert asyncio.run(run()) == [(f"fig: {3 * count} cents", 1.0) for count in range(1000)]
    env.close()
    for thread in threading.enumerate():
        if "ToolsEnvironment" in thread.name:
            thread.join(10)
            assert not thread.is_alive()


def test_a_subclass_of_the_agents_sdks_tool_is_one_too(calls: Calls, play: Play) -> None:
    (made,) = openai_agents(price)

    class Own(type(made)):  # type: ignore[misc]
        """As its own, from another module."""

    fields = {name: getattr(made, name) for name in ("name", "description", "params_json_schema")}
    own = Own(**fields, on_invoke_tool=made.on_invoke_tool)
    said = calls(("price", {"fruit": "fig", "count": 1}))
    (outcome,) = play(Environment.from_tools([own])(), said)
    assert outcome.messages[0]["content"] == "fig: 3 cents"


def test_two_tools_of_a_name_are_refused() -> None:
    tools = langchain(price)
    with pytest.raises(ToolDefinitionError, match="the name of tool 'price' is taken"):
        Environment.from_tools([price, *tools])


def test_a_picture_is_no_argument() -> None:
    base: Any = pytest.importorskip("smolagents").Tool

    class Look(base):  # type: ignore[misc]
        name = "look"
        description = "Look at a picture."
        inputs = {"picture": {"type": "image", "description": "What to look at."}}  # noqa: RUF012
        output_type = "string"

        def forward(self, picture: Any) -> str:
            return "seen"

    with pytest.raises(ToolDefinitionError, match="parameter 'picture' has type 'image'"):
        Environment.from_tools([Look()])
