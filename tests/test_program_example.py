"""examples/program.py: an agent program plays the main job, with the main job's prompt."""

from pathlib import Path
from typing import Any

import numpy as np
import yaml

from gymnast.envs import Renderer, make
from gymnast.types import ToolCall

EXAMPLES = Path(__file__).parent.parent / "examples"


def settings(name: str) -> dict[str, Any]:
    section = yaml.safe_load((EXAMPLES / name).read_text())["environment"]
    return {**section, "id": section["id"].replace("program.py", str(EXAMPLES / "program.py"))}


def made(name: str, renderer: Renderer) -> Any:
    given = settings(name)
    return make(given.pop("id"), renderer, **given)


def test_its_runs_are_those_of_the_main_job() -> None:
    main, own = (
        yaml.safe_load((EXAMPLES / name).read_text())
        for name in ("arithmetic.yaml", "program.yaml")
    )
    differs = {"environment", "output_dir"}
    assert {k: v for k, v in main.items() if k not in differs} == {
        k: v for k, v in own.items() if k not in differs
    }


def test_it_sees_and_does_what_the_main_job_does(renderer: Renderer) -> None:
    main, own = made("arithmetic.yaml", renderer), made("program.yaml", renderer)
    row = {"prompt": "What is 3 times 4?", "a": 3, "b": 4, "operation": "multiply", "answer": 12}
    prompt, _ = main.reset(options={"row": row})
    ids, _ = own.reset(options={"row": {**row, "name": "multiply"}, "branches": True})
    assert ids.tolist() == prompt.tolist() and own.tools == main.tools
    said: list[Any] = [
        {"content": "", "tool_calls": [ToolCall("", "multiply", {"a": 4, "b": 3})]},
        {"content": "The answer is 12."},
    ]
    for message in said:
        action = renderer.encode({"role": "assistant", **message}, tools=main.tools)
        seen, reward, over, _, _ = main.step(np.array(action))
        ids, own_reward, own_over, _, info = own.step(np.array(action))
        assert ids.tolist() == seen.tolist()
        assert (own_reward, own_over) == (reward, over)
    assert own_reward == 1.0 and info["metrics"]["program/branches"] == 1
    main.close()
    own.close()


def test_it_pays_for_parts_of_the_way(renderer: Renderer) -> None:
    env = made("program.yaml", renderer)
    row = {"prompt": "What is 3 times 4?", "name": "multiply", "answer": 12}
    for calls, answer, paid in (
        ([], "It is 12.", 1.0),
        ([ToolCall("", "multiply", {"a": 3, "b": 4})], "Hm.", 0.6),
        ([ToolCall("", "add", {"a": 3, "b": 4})], "7", 0.2),
        ([ToolCall("", "divide", {"a": 3, "b": 4})], "7", 0.0),
    ):
        env.reset(options={"row": row, "branches": True})
        if calls:
            message: Any = {"role": "assistant", "content": "", "tool_calls": calls}
            env.step(np.array(renderer.encode(message, tools=env.tools)))
        action = renderer.encode({"role": "assistant", "content": answer})
        _, reward, over, _, _ = env.step(np.array(action))
        assert over and reward == paid
    env.close()
