"""Programs on workers: each asks its worker's endpoint, and its contexts are those it has here."""

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gymnast.agents import ScriptedAgent
from gymnast.envs import Renderer
from gymnast.trainers import RayWorkers, collect
from gymnast.trainers.config.files import parse_config
from gymnast.trainers.config.task import prepare_task
from gymnast.types import Sampling, ToolCall
from program_fixtures import left_behind, script

pytestmark = pytest.mark.ray

ROWS: list[dict[str, Any]] = [{"prompt": f"What is {i} plus 2?"} for i in range(4)]
SETTINGS: dict[str, Any] = {"group_size": 2, "sampling": Sampling(max_new_tokens=64)}
ADD = {
    "type": "function",
    "function": {"name": "add", "parameters": {"type": "object", "properties": {}}},
}
LOOP = """
told = ask(said, tools=TOOLS)
said += [told, {"role": "tool", "tool_call_id": told["tool_calls"][0]["id"], "content": "3"}]
said.append(ask(said, tools=TOOLS))
ask([{"role": "user", "content": "Summarise " + said[0]["content"]}])
"""
COMMAND = script(f"TOOLS = [{ADD}]\n{LOOP}")
FUNCTION = f"""
import openai

def pays(episode, result):
    return 0.5 * (result.exit_code == 0)

def adds(base_url, api_key, task):
    with openai.OpenAI(base_url=base_url, api_key=api_key, max_retries=0) as client:
        def ask(messages, **more):
            asked = client.chat.completions.create(model="policy", messages=messages, **more)
            return asked.choices[0].message.model_dump(exclude_none=True)
        TOOLS = [{ADD}]
        said = [{{"role": "user", "content": task["prompt"]}}]
        {LOOP.strip().replace(chr(10), chr(10) + " " * 8)}
"""


@pytest.fixture
def adding(renderer: Renderer) -> ScriptedAgent:
    """Calls once in a context with a tool, then says so; sums up in any other."""
    call = {"role": "assistant", "content": "", "tool_calls": [ToolCall("c1", "add", {"a": 1})]}
    called = renderer.encode(call)
    done = renderer.encode({"role": "assistant", "content": "It is 3."})
    summed = renderer.encode({"role": "assistant", "content": "Added."})

    def turn(ids: list[int]) -> list[int]:
        if "Summarise" in renderer.tokenizer.decode(ids):
            return summed
        return done if any(ids[i : i + len(called)] == called for i in range(len(ids))) else called

    return ScriptedAgent(turn)


def contexts(make_env: Callable[[], Any], agent: Any, workers: RayWorkers | None) -> list[Any]:
    """What each episode is to the learner, by context; and how it was rewarded."""
    playing = collect(make_env, agent, ROWS, **SETTINGS, workers=workers)
    found = asyncio.run(playing)
    assert found.metrics["program/requests"] == 3.0, found.metrics
    return [
        (
            trajectory.reward,
            trajectory.order,
            [(each.ids, each.action_mask, each.messages) for each in trajectory.contexts],
        )
        for trajectory in found.trajectories
    ]


@pytest.fixture
def workers(two_nodes: str) -> Iterator[RayWorkers]:
    with RayWorkers(2, address=two_nodes) as workers:
        yield workers


@pytest.mark.parametrize("program", [{"function": "agent.py:adds"}, {"command": COMMAND}])
def test_a_program_plays_on_workers_as_in_this_process(
    workers: RayWorkers,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    tokenizer: Any,
    adding: ScriptedAgent,
    program: dict[str, Any],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("agent.py").write_text(FUNCTION)
    Path("rows.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in ROWS))
    values = {
        "model": {"name": "tiny:"},
        "environment": {"id": "gymnast/Program-v0", "reward": "agent.py:pays", **program},
        "data": {"train": "rows.jsonl"},
        "evaluation": {"rows": 1},
    }
    make_env = prepare_task(parse_config(values), tokenizer, 2048).make_env
    here = contexts(make_env, adding, None)
    Path("agent.py").unlink()  # as if the workers' machines had other disks
    assert contexts(make_env, adding, workers) == here
    assert len(here) == 8
    for reward, order, (first, second) in here:
        assert (reward, list(order)) == (0.5, [0, 0, 1])
        assert sum(first[1]) > 0 and sum(second[1]) > 0
    assert not left_behind()
