"""Gymnast's side of `step.py`: `env.step`, and the `astep` that rollouts await.

A step reads the ids, checks the arguments against the tool's schema, runs the tool within its
limits (a sync one on the episode's thread), writes the result as ids, and reports rewards, errors,
timings and how many tokens are left.
"""

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from transformers import AutoTokenizer

from gymnast.envs import Environment, Renderer, tool
from step_calls import CALLS, Answers, Spent, Workload


class Sync(Environment):
    """A sync tool.

    Attributes:
        answers: What it answers.
    """

    answers: Answers

    @tool
    def note(self, title: str, text: str, importance: int) -> str:
        """Write a note down.

        Args:
            title: What it is about.
            text: The note.
            importance: From 1 to 5.
        """
        return self.answers.answer(title=title, text=text, importance=importance)


class Async(Environment):
    """An async tool.

    Attributes:
        answers: What it answers.
    """

    answers: Answers

    @tool
    async def note(self, title: str, text: str, importance: int) -> str:
        """Write a note down.

        Args:
            title: What it is about.
            text: The note.
            importance: From 1 to 5.
        """
        return self.answers.answer(title=title, text=text, importance=importance)


def play(workload: Workload) -> Sequence[Spent]:
    """Play all episodes in three ways."""
    renderer = Renderer(AutoTokenizer.from_pretrained(workload.tokenizer))
    return [
        _blocking(Sync(renderer, max_turns=CALLS + 1), workload),
        asyncio.run(_awaited("astep, sync tool", Sync(renderer, max_turns=CALLS + 1), workload)),
        asyncio.run(_awaited("astep, async tool", Async(renderer, max_turns=CALLS + 1), workload)),
    ]


class _Steps:
    """What steps took, one after the other."""

    def __init__(self) -> None:
        self._wall, self._cpu, self._read, self._written = [0.0], [0.0], 0, 0
        self._wall.clear()
        self._cpu.clear()

    def begin(self) -> None:
        self._cpu_ns, self._wall_ns = time.process_time_ns(), time.perf_counter_ns()

    def end(self, action: Sequence[int], step: Any) -> None:
        wall_ns, cpu_ns = time.perf_counter_ns(), time.process_time_ns()
        self._wall.append((wall_ns - self._wall_ns) / 1e6)
        self._cpu.append((cpu_ns - self._cpu_ns) / 1e6)
        observation, _, terminated, truncated, info = step
        assert not (terminated or truncated or info["errors"]), info
        self._read += len(action)
        self._written += len(observation)

    def spent(self, side: str) -> Spent:
        count = len(self._wall)
        return Spent(side, self._wall, self._cpu, self._read / count, self._written / count)


def _blocking(env: Any, workload: Workload) -> Spent:
    steps = _Steps()
    env.answers = Answers(workload)
    for episode, turns in enumerate(workload.turns):
        env.answers.begin(episode)
        env.reset(options={"row": {"prompt": workload.prompt}})
        for turn in turns[:-1]:
            action = np.array(turn)
            steps.begin()
            step = env.step(action)
            steps.end(turn, step)
    env.close()
    return steps.spent("Gymnast, step")


async def _awaited(name: str, env: Any, workload: Workload) -> Spent:
    steps = _Steps()
    env.answers = Answers(workload)
    for episode, turns in enumerate(workload.turns):
        env.answers.begin(episode)
        await env.areset(options={"row": {"prompt": workload.prompt}})
        for turn in turns[:-1]:
            steps.begin()
            step = await env.astep(turn)
            steps.end(turn, step)
    await env.aclose()
    return steps.spent(f"Gymnast, {name}")
