"""What it costs to look at saved episodes: to open an index of them, find some, and load one.

    python benchmarks/finding_episodes.py      10 files of 1,000 episodes of 8,000 tokens

Half of the tokens are random, so that files are as large as those of a real tokenizer; episodes
have two turns and one call, and metrics as a run writes them. Seconds are of the wall, with the
files in the cache of the system.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from gymnast.trainers.inspecting.causes import diagnose
from gymnast.trainers.inspecting.filters import Filter
from gymnast.trainers.inspecting.index import Index
from gymnast.trainers.saving.rollout_files import write_rollouts
from gymnast.types import Message, Span, StopReason, Trajectory

MEMBERS = 8
CALL: Message = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {"id": "a", "type": "function", "function": {"name": "add", "arguments": {"a": 2}}}
    ],
}
RESULT: Message = {"role": "tool", "tool_call_id": "a", "name": "add", "content": "5"}
WORDS = ["the", "price", "of", "a", "pear", "is", "two", "cents", "and", "so", "on"]


def episode(generator: np.random.Generator, tokens: int, group: int) -> Trajectory:
    """An episode of so many tokens, of which an eighth are its prompt."""
    prompt, half = tokens // 8, tokens // 2
    mask = [0] * prompt + [1] * (tokens - prompt)
    text = " ".join(generator.choice(WORDS, size=tokens // 2))
    ids = np.concatenate([np.arange(half), generator.integers(50_000, size=tokens - half)])
    return Trajectory(
        ids=ids.tolist(),
        action_mask=mask,
        logprobs=(generator.normal(size=tokens) * mask).tolist(),
        prompt_length=prompt,
        turns=[Span(prompt, half), Span(half, tokens)],
        turn_rewards=[0.0, float(generator.random() < 0.3)],
        stop_reason=StopReason.answered,
        terminated=True,
        truncated=False,
        messages=[
            {"role": "user", "content": "How much?"},
            *(CALL, RESULT),
            {"role": "assistant", "content": text},
        ],
        tools=[{"function": {"name": "add"}}],
        metrics={"tools/calls": 1.0, **{f"time/part{n}_s": generator.random() for n in range(12)}},
        row={"number": group},
    )


def measured(what: str, function: Callable[[], Any]) -> Any:
    """Call a function, and print how long it took."""
    before = time.perf_counter()
    result = function()
    seconds = time.perf_counter() - before
    print(f"{what:32} {seconds:8.3f} s", flush=True)
    return result


def look(folder: Path) -> None:
    """Open the index, find episodes by what is cheap and what is dear, and load one."""
    index = measured("open the index", lambda: Index(folder))
    print(f"{len(index)} episodes")
    count = len(index.files)
    for what, wanted in {
        "by reward": Filter(min_reward=0.5),
        "by an error of a call": Filter(error="malformed"),
        "by their row": Filter(where="number > `3`"),
        "by a text in their messages": Filter(search="zebra"),
    }.items():
        measured(what, partial(_found, index, wanted))
    measured("why those without reward", lambda: diagnose(index.entries()))
    measured("load one", lambda: index.entry(f"step_{count:05d}/0/1").load())


def _found(index: Index, wanted: Filter) -> int:
    return sum(1 for _ in index.find(wanted))


def main() -> None:
    """Write the files, and look at them."""
    parser = argparse.ArgumentParser(description="What it costs to look at saved episodes.")
    parser.add_argument("--files", type=int, default=10)
    parser.add_argument("--groups", type=int, default=125)
    parser.add_argument("--tokens", type=int, default=8000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write_run(Path(folder), arguments.files, arguments.groups, arguments.tokens)
        look(Path(folder))


def write_run(folder: Path, files: int, groups: int, tokens: int) -> None:
    """Write so many files of so many groups, whose episodes have so many tokens."""
    generator = np.random.default_rng(0)
    for number in range(1, files + 1):
        made = [
            [episode(generator, tokens, group) for _ in range(MEMBERS)] for group in range(groups)
        ]
        write_rollouts(folder / f"rollouts/step_{number:05d}.parquet", made)
        del made


if __name__ == "__main__":
    main()
