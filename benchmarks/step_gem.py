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
from importlib import metadata
from pathlib import Path
from typing import Any

CALL = re.compile(r"<tool_call>(.*?)</tool_call>", re.DOTALL)
RESULT = (
    "\n<|im_start|>user\n<tool_response>\n{}\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
)


def main() -> None:
    """Play the episodes, and print what their steps took."""
    from gem.core import Env
    from gem.tools.base_tool import BaseTool
    from gem.tools.tool_env_wrapper import ToolEnvWrapper
    from tokenizers import Tokenizer

    work = json.loads(Path(sys.argv[1]).read_text())
    tokenizer = Tokenizer.from_file(str(Path(work["tokenizer"], "tokenizer.json")))

    class Question(Env):  # type: ignore[misc]
        def reset(self, seed: Any = None) -> Any:
            return work["prompt"], {}

        def step(self, action: str) -> Any:
            return "", 0.0, True, False, {}

    class Note(BaseTool):  # type: ignore[misc]
        tool_type = "note"
        name = "note"

        def begin(self, episode: int) -> None:
            self.left = zip(work["arguments"][episode], work["results"][episode])  # noqa: B905

        def instruction_string(self) -> str:
            return json.dumps(work["schema"])

        def execute_action(self, action: str) -> Any:
            found = CALL.search(action)
            if found is None:
                return False, True, "", action
            given = json.loads(found.group(1))
            wanted, result = next(self.left)
            assert given == {"name": "note", "arguments": wanted}
            return True, False, result, found.group()

    note = Note()
    env = ToolEnvWrapper(Question(), [note], max_tool_uses=None)
    spent: dict[bool, Any] = {True: ([], []), False: ([], [])}
    read = written = 0
    for with_ids in (False, True):
        wall, cpu = spent[with_ids]
        read = written = 0
        for episode, turns in enumerate(work["turns"]):
            note.begin(episode)
            env.reset()
            for ids in turns[:-1]:
                text = tokenizer.decode(ids, skip_special_tokens=False)
                cpu_ns, wall_ns = time.process_time_ns(), time.perf_counter_ns()
                if with_ids:
                    text = tokenizer.decode(ids, skip_special_tokens=False)
                observation, _, terminated, truncated, _ = env.step(text)
                if with_ids:
                    appended = tokenizer.encode(RESULT.format(observation)).ids
                    written += len(appended)
                wall.append((time.perf_counter_ns() - wall_ns) / 1e6)
                cpu.append((time.process_time_ns() - cpu_ns) / 1e6)
                assert not terminated and not truncated
                read += len(ids)
    count = len(spent[True][0])
    version = metadata.version("gem-llm")
    print(
        json.dumps(
            [
                {"side": f"GEM {version}, text alone", "wall_ms": spent[False][0],
                 "cpu_ms": spent[False][1], "read": 0, "written": 0},
                {"side": f"GEM {version}, and ids", "wall_ms": spent[True][0],
                 "cpu_ms": spent[True][1], "read": read / count, "written": written / count},
            ]
        )
    )  # fmt: skip


if __name__ == "__main__":
    main()
