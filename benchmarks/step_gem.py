"""GEM's side of `step.py`, run by an interpreter that has gem-llm and tokenizers, and no Gymnast.

    python step_gem.py WORKLOAD.json

GEM's environments take and return text. Its `ToolEnvWrapper.step` asks each tool to read the text
(here by an expression for `<tool_call>`, and `json`), runs it and returns the text of its result;
no arguments are checked. Ids are not its business, so a second figure adds what any trainer around
it has to do: decode the action, and encode the result in the form of the chat template.
"""

import json
import re
import sys
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from gem.core import Env
from gem.tools.base_tool import BaseTool
from gem.tools.tool_env_wrapper import ToolEnvWrapper
from tokenizers import Tokenizer

CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
RESULT = (
    "\n<|im_start|>user\n<tool_response>\n{}\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
)


class Question(Env):  # type: ignore[misc]
    """An environment that ends with the first answer."""

    def reset(self, seed: Any = None) -> Any:
        """Ask nothing."""
        return "", {}

    def step(self, action: str) -> Any:
        """End."""
        return "", 0.0, True, False, {}


class Note(BaseTool):  # type: ignore[misc]
    """The tool.

    Attributes:
        left: The calls that come, and their answers.
    """

    tool_type = "note"
    name = "note"
    left: Iterator[tuple[Any, str]] = iter(())

    def instruction_string(self) -> str:
        """Say nothing to the model."""
        return ""

    def execute_action(self, action: str) -> Any:
        """Read a call and answer it."""
        found = CALL.search(action)
        if found is None:
            return False, True, "", action
        given = json.loads(found.group(1))
        wanted, result = next(self.left)
        assert given == {"name": "note", "arguments": wanted}
        return True, False, result, found.group()


def play(work: Any, with_ids: bool) -> dict[str, Any]:
    """Play all episodes.

    Args:
        work: The workload.
        with_ids: Whether the ids are decoded and encoded within the step.
    """
    tokenizer = Tokenizer.from_file(str(Path(work["tokenizer"], "tokenizer.json")))
    note = Note()
    env = ToolEnvWrapper(Question(), [note], max_tool_uses=None)
    wall, cpu, read, written = [], [], 0, 0
    for turns, given, results in zip(
        work["turns"], work["arguments"], work["results"], strict=True
    ):
        note.left = zip(given, results, strict=True)
        env.reset()
        for ids in turns[:-1]:
            text = tokenizer.decode(ids, skip_special_tokens=False)
            cpu_ns, wall_ns = time.process_time_ns(), time.perf_counter_ns()
            if with_ids:
                text = tokenizer.decode(ids, skip_special_tokens=False)
            observation, _, terminated, truncated, _ = env.step(text)
            if with_ids:
                written += len(tokenizer.encode(RESULT.format(observation)).ids)
                read += len(ids)
            wall.append((time.perf_counter_ns() - wall_ns) / 1e6)
            cpu.append((time.process_time_ns() - cpu_ns) / 1e6)
            assert not terminated and not truncated
    side = f"GEM {metadata.version('gem-llm')}, {'and ids' if with_ids else 'text alone'}"
    tokens = {"read": read / len(wall), "written": written / len(wall)}
    return {"side": side, "wall_ms": wall, "cpu_ms": cpu, **tokens}


def main() -> None:
    """Play the episodes, and print what their steps took."""
    work = json.loads(Path(sys.argv[1]).read_text())
    print(json.dumps([play(work, False), play(work, True)]))


if __name__ == "__main__":
    main()
