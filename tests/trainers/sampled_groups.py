"""Groups of episodes, drawn at random or by an engine, and an optimizer to look into."""

import asyncio
from typing import Any

import numpy as np
import torch

from gymnast.agents import TransformersAgent
from gymnast.agents.loading.tiny import tiny_model
from gymnast.trainers.learner.optimizers.master_optimizer import MasterOptimizer
from gymnast.types import Sampling, Span, StopReason, Trajectory

Groups = list[list[Trajectory]]


class KeepsGradients(MasterOptimizer):
    """An AdamW whose last gradients can be looked at."""

    def step(self, norm: torch.Tensor, max_norm: float) -> None:
        self.gradients = [master.grad for master in self.master if master.grad is not None]
        super().step(norm, max_norm)


def random_groups(model: Any, rewards: list[list[float]], seed: int = 0) -> Groups:
    """Groups of episodes with two actions each, sampled by a policy near the model."""
    random = np.random.default_rng(seed)

    def tokens(low: int, high: int) -> list[int]:
        return [int(t) for t in random.integers(0, 1000, random.integers(low, high))]

    groups = []
    for group_rewards in rewards:
        prompt = tokens(20, 40)
        group = []
        for reward in group_rewards:
            first, observed, second = tokens(1, 20), tokens(5, 40), tokens(1, 20)
            ids = prompt + first + observed + second
            mask = [0] * len(prompt) + [1] * len(first) + [0] * len(observed) + [1] * len(second)
            near = forward_logprobs(model, ids).detach() + torch.tensor(
                random.normal(scale=0.3, size=len(ids))
            )
            start = len(prompt)
            group.append(
                Trajectory(
                    ids=ids,
                    action_mask=mask,
                    logprobs=[p * bit for p, bit in zip(near.tolist(), mask, strict=True)],
                    prompt_length=start,
                    turns=[Span(start, start + len(first)), Span(len(ids) - len(second), len(ids))],
                    turn_rewards=[0.0, reward],
                    stop_reason=StopReason.answered,
                    terminated=True,
                    truncated=False,
                )
            )
        groups.append(group)
    return groups


def forward_logprobs(model: Any, ids: list[int]) -> torch.Tensor:
    """The log-probability of every token but the first (which gets 0), in a plain forward."""
    tokens = torch.tensor(ids)
    logprobs = torch.log_softmax(model(tokens[None]).logits[0, :-1].double(), dim=-1)
    chosen = logprobs.gather(1, tokens[1:, None])[:, 0]
    return torch.cat([torch.zeros(1, dtype=chosen.dtype), chosen])


def just_sampled(model: Any, *, tokens: int = 24, tokenizer: Any = None) -> Groups:
    """Two groups of four answers by an engine, with rewards that differ."""

    async def sample() -> Groups:
        agent = TransformersAgent(model, tokenizer)
        prompts = [list(range(20 + n, 60 + n)) for n in range(2)]
        asked = (answer(agent, prompt, member) for prompt in prompts for member in range(4))
        answers = await asyncio.gather(*asked)
        return [list(answers[:4]), list(answers[4:])]

    async def answer(agent: Any, prompt: list[int], member: int) -> Trajectory:
        sampling = Sampling(max_new_tokens=tokens, seed=member)
        completion = await agent.generate(prompt, sampling)
        length = len(completion.ids)
        return Trajectory(
            ids=prompt + list(completion.ids),
            action_mask=[0] * len(prompt) + [1] * length,
            logprobs=[0.0] * len(prompt) + list(completion.logprobs),
            prompt_length=len(prompt),
            turns=[Span(len(prompt), len(prompt) + length)],
            turn_rewards=[float(member % 2)],
            stop_reason=StopReason.answered,
            terminated=True,
            truncated=False,
        )

    return asyncio.run(sample())


def short_groups() -> Groups:
    """64 groups, each of a better and a worse episode of four tokens."""

    def episode(number: int) -> Trajectory:
        return Trajectory(
            ids=[5 + number % 7, 3, *(10 + (number * 37 + 11 * i) % 900 for i in range(4))],
            action_mask=[0, 0, 1, 1, 1, 1],
            logprobs=[0.0] * 6,
            prompt_length=2,
            turns=[Span(2, 6)],
            turn_rewards=[float(number % 2)],
            stop_reason=StopReason.answered,
            terminated=True,
            truncated=False,
        )

    return [[episode(2 * n), episode(2 * n + 1)] for n in range(64)]


def bfloat16_model() -> Any:
    model = tiny_model()
    for weight in model.parameters():
        weight.data = weight.data.bfloat16()
    return model
