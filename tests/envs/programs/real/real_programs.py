"""Agent programs as their packages have them: each multiplies with a tool until it has an answer.

They are functions, so that a package is imported once. None knows that it is not served by a model.
"""

import json
from importlib import import_module
from typing import Any

QUESTION = "What is 3 times 4, times 5?"
MULTIPLY = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
    "required": ["a", "b"],
}


def openai_client(base_url: str, api_key: str, task: dict[str, Any]) -> str | None:
    """A loop over chat completions."""
    from openai import OpenAI

    function = {"name": "multiply", "description": "Multiply.", "parameters": MULTIPLY}
    tools: Any = [{"type": "function", "function": function}]
    messages: list[Any] = [{"role": "user", "content": task["prompt"]}]
    with OpenAI(base_url=base_url, api_key=api_key) as client:
        while True:
            asked = client.chat.completions.create(model="policy", messages=messages, tools=tools)
            message = asked.choices[0].message
            if not message.tool_calls:
                return message.content
            messages.append(message)
            for call in message.tool_calls:
                assert call.type == "function"
                given = json.loads(call.function.arguments)
                result = str(given["a"] * given["b"])
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


def anthropic_client(base_url: str, api_key: str, task: dict[str, Any]) -> str:
    """A loop over Anthropic's messages, streamed."""
    from anthropic import Anthropic

    tools: Any = [{"name": "multiply", "description": "Multiply.", "input_schema": MULTIPLY}]
    messages: list[Any] = [{"role": "user", "content": task["prompt"]}]
    with Anthropic(base_url=base_url.removesuffix("/v1"), api_key=api_key) as client:
        while True:
            with client.messages.stream(
                model="policy", max_tokens=200, messages=messages, tools=tools
            ) as stream:
                message = stream.get_final_message()
            calls: list[Any] = [block for block in message.content if block.type == "tool_use"]
            if not calls:
                return "".join(block.text for block in message.content if block.type == "text")
            messages.append({"role": "assistant", "content": message.content})
            results = [
                {
                    "type": "tool_result",
                    "tool_use_id": call.id,
                    "content": str(call.input["a"] * call.input["b"]),
                }
                for call in calls
            ]
            messages.append({"role": "user", "content": results})


async def openai_agents(base_url: str, api_key: str, task: dict[str, Any]) -> str:
    """An agent of the Agents SDK, which speaks responses."""
    from openai import AsyncOpenAI

    sdk: Any = import_module("agents")  # not the folder of this repository
    sdk.set_tracing_disabled(True)

    def multiply(a: int, b: int) -> int:
        """Multiply."""
        return a * b

    async with AsyncOpenAI(base_url=base_url, api_key=api_key) as client:
        agent = sdk.Agent(
            name="Multiplier",
            instructions="Multiply.",
            tools=[sdk.function_tool(multiply)],
            model=sdk.OpenAIResponsesModel("policy", client),
        )
        return str((await sdk.Runner.run(agent, task["prompt"])).final_output)


def smolagents(base_url: str, api_key: str, task: dict[str, Any]) -> str:
    """An agent of smolagents that calls tools."""
    library: Any = import_module("smolagents")

    def multiply(a: int, b: int) -> int:
        """Multiply.

        Args:
            a: A factor.
            b: Another.
        """
        return a * b

    # By itself it forces a call in every message.
    model = library.OpenAIServerModel(
        "policy", api_base=base_url, api_key=api_key, tool_choice="auto"
    )
    tools, quiet = [library.tool(multiply)], library.LogLevel.OFF
    agent = library.ToolCallingAgent(tools=tools, model=model, verbosity_level=quiet)
    return str(agent.run(task["prompt"]))


async def langgraph(base_url: str, api_key: str, task: dict[str, Any]) -> str:
    """A graph that goes round between a model and its tools."""
    import httpx
    from langchain_core.tools import tool
    from langchain_openai import ChatOpenAI
    from langgraph.graph import MessagesState, StateGraph
    from langgraph.prebuilt import ToolNode, tools_condition
    from pydantic import SecretStr

    @tool
    def multiply(a: int, b: int) -> int:
        """Multiply."""
        return a * b

    async with httpx.AsyncClient() as client:
        model: Any = ChatOpenAI(
            model="policy", base_url=base_url, api_key=SecretStr(api_key), http_async_client=client
        )
        bound = model.bind_tools([multiply])

        async def ask(state: Any) -> Any:
            return {"messages": [await bound.ainvoke(state["messages"])]}

        graph = StateGraph(MessagesState)
        graph.add_node("ask", ask)
        graph.add_node("tools", ToolNode([multiply]))
        graph.set_entry_point("ask")
        graph.add_conditional_edges("ask", tools_condition)
        graph.add_edge("tools", "ask")
        begun: Any = {"messages": [("user", task["prompt"])]}
        ended: Any = await graph.compile().ainvoke(begun)
        return str(ended["messages"][-1].content)


def mini_swe_agent(base_url: str, api_key: str, task: dict[str, Any]) -> str:
    """mini-swe-agent with its own prompts and its own shell."""
    import os

    os.environ["MSWEA_COST_TRACKING"] = "ignore_errors"
    os.environ["MSWEA_SILENT_STARTUP"] = "1"
    from minisweagent.agents.default import DefaultAgent
    from minisweagent.config import builtin_config_dir, get_config_from_spec
    from minisweagent.environments.local import LocalEnvironment
    from minisweagent.models.litellm_model import LitellmModel

    config = get_config_from_spec(str(builtin_config_dir / "mini.yaml"))
    known = {"system_template", "instance_template", "step_limit", "cost_limit"}
    settings = {name: value for name, value in config["agent"].items() if name in known}
    given = {**config["model"], "model_kwargs": {"api_base": base_url, "api_key": api_key}}
    given.pop("model_name", None)
    model = LitellmModel(model_name="openai/policy", **given)
    agent = DefaultAgent(model, LocalEnvironment(**config["environment"]), **settings)
    return str(agent.run(task["prompt"])["submission"]).strip()
