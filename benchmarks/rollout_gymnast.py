"""Gymnast's side: `collect` with a `TransformersAgent` whose samples are forced to a script's.

One whole call of `collect` is timed: environments made and reset, prompts rendered, tools run,
rewards, trajectories. The agent is made once, and drops its cache before every run.
"""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import gymnasium
import torch

from gymnast.agents import Agent, TransformersAgent
from gymnast.agents.engine import rows_executor
from gymnast.agents.engine.sampling import sample
from gymnast.envs import Environment, Renderer
from gymnast.trainers import collect
from gymnast.types import Completion, Sampling
from rollout_measure import Cost, Meter
from rollout_script import Script, Workload, lookup

Conversation = tuple[tuple[int, ...], tuple[int, ...]]  # ids, and 1 where they were sampled


class Forced:
    """An agent whose turns come from a script, by force: the logits leave one choice.

    Args:
        agent: Samples the tokens.
        script: Names them.
    """

    def __init__(self, agent: TransformersAgent, script: Script) -> None:
        self._agent = agent
        self._script = script
        self._turns: dict[int | None, Iterator[int]] = {}  # by the seed of the turn

    async def generate(self, context_ids: list[int], sampling: Sampling) -> Completion:
        """Sample the script's next turn."""
        self._turns[sampling.seed] = iter(self._script.next_turn(context_ids))
        return await self._agent.generate(context_ids, sampling)

    def force(self, sample: Callable[..., Any]) -> Callable[..., Any]:
        """Do what the engine's `sample` does, with logits that leave one choice."""

        def forced(logits: torch.Tensor, draws: Any, *rest: Any) -> Any:
            ids = [next(self._turns[draw.sampling.seed]) for draw in draws]
            index = torch.tensor(ids, device=logits.device)[:, None]
            return sample(torch.full_like(logits, -torch.inf).scatter_(1, index, 0.0), draws, *rest)

        return forced


class GymnastSide:
    """Rolls a workload out with Gymnast.

    Args:
        model: The policy; not shared with another side.
        workload: The episodes to play.
        deterministic: Whether `collect` samples in rounds.
    """

    def __init__(self, model: Any, workload: Workload, *, deterministic: bool = False) -> None:
        self._workload = workload
        self._deterministic = deterministic
        self._agent = TransformersAgent(model, executor="rows")  # whose tokens can be forced
        self._meter = Meter(model)
        self._renderer = Renderer(workload.tokenizer)
        self._environment = Environment.from_tools([lookup], reward=lambda episode: 0.0)
        self.conversations: list[Conversation] = []

    def run(self) -> Cost:
        """Roll all episodes out once, and keep their `conversations`."""
        self._agent.weights_changed()
        agent = Forced(self._agent, Script(self._workload))
        with (
            patch.object(rows_executor, "sample", agent.force(sample)),
            self._meter.measure() as cost,
        ):
            found = asyncio.run(self._collect(agent))
        self.conversations = [
            (tuple(trajectory.ids), tuple(trajectory.action_mask))
            for group in found
            for trajectory in group
        ]
        return cost

    async def _collect(self, agent: Agent) -> Any:
        return await collect(
            self._make_env,
            agent,
            [{"prompt": prompt} for prompt in self._workload.prompts],
            group_size=len(self._workload.turns[0]),
            sampling=Sampling(max_new_tokens=512),
            deterministic=self._deterministic,
        )

    def _make_env(self) -> gymnasium.Env[Any, Any]:
        return self._environment(self._renderer, max_turns=100)
