"""How far the engine and the trainer disagree on the log-probabilities of what was sampled.

    python benchmarks/engine_mismatch.py

Small random models in bfloat16, wide enough in their logits to be as sure as trained ones, sample
with the engine; then the trainer's `Policy` computes the same tokens. Nothing is trained, so any
difference is rounding.
"""

import asyncio
import platform
from dataclasses import dataclass
from typing import Any

import torch

from gymnast.agents import TransformersAgent
from gymnast.agents.models.float32_head import use_float32_head
from gymnast.trainers.learner.policy.micro_batches import CreditedTrajectory, micro_batch
from gymnast.trainers.learner.policy.policy import Policy
from gymnast.types import Completion, Sampling, Span, StopReason, Trajectory
from model_families import VOCABULARY, tiny

PROMPTS, NEW_TOKENS = 32, 64
HEAD_SCALE = 4.0  # random heads are otherwise nearly indifferent to the token


@dataclass(frozen=True)
class Mismatch:
    """Differences of log-probabilities, in nats.

    Attributes:
        mean: Of the absolute differences.
        largest: Of them.
        tokens: How many action tokens.
    """

    mean: float
    largest: float
    tokens: int


def in_bfloat16(family: str, **settings: Any) -> Any:
    """A random model of a family, in bfloat16, whose logits are as far apart as trained ones."""
    model = tiny(family, tie_word_embeddings=False, **settings)
    with torch.no_grad():
        model.get_output_embeddings().weight.mul_(HEAD_SCALE)
    for parameter in model.parameters():
        parameter.data = parameter.data.bfloat16()
    return model


def contexts() -> list[list[int]]:
    """Random contexts of 16 to 79 tokens."""
    draw = torch.Generator().manual_seed(0)
    lengths = [16 + 64 * i // PROMPTS for i in range(PROMPTS)]
    return [torch.randint(3, VOCABULARY, (n,), generator=draw).tolist() for n in lengths]


def trajectory(context: list[int], completion: Completion) -> Trajectory:
    """An episode of one turn."""
    before, sampled = len(context), len(completion.ids)
    return Trajectory(
        ids=context + completion.ids,
        action_mask=[0] * before + [1] * sampled,
        logprobs=[0.0] * before + completion.logprobs,
        prompt_length=before,
        turns=[Span(before, before + sampled)],
        turn_rewards=[0.0],
        stop_reason=StopReason.answered,
        terminated=True,
        truncated=False,
    )


def mismatch(model: Any) -> Mismatch:
    """Sample, and compute what was sampled again."""
    agent = TransformersAgent(model)
    requests = [(c, Sampling(max_new_tokens=NEW_TOKENS, seed=i)) for i, c in enumerate(contexts())]
    with agent.awake():
        completions = asyncio.run(agent.generate_all(requests))
    episodes = [trajectory(c, done) for (c, _), done in zip(requests, completions, strict=True)]
    batch = micro_batch([CreditedTrajectory(t, torch.ones(1)) for t in episodes], model.device)
    with torch.no_grad():
        difference = (Policy(model)(batch) - batch.sampled_logprobs).abs()
    return Mismatch(difference.mean().item(), difference.max().item(), len(difference))


def main() -> None:
    """Print a table."""
    torch.set_num_threads(1)
    print(f"{platform.machine()}, {torch.__version__}; differences in nats")
    for family in ("llama", "qwen3", "gemma"):
        for wide in (False, True):
            model = in_bfloat16(family)
            if wide:
                use_float32_head(model)
            found = mismatch(model)
            head = "float32" if wide else "bfloat16"
            print(
                f"{family:12s} head in {head:8s} mean {found.mean:.5f} largest {found.largest:.5f} "
                f"({found.tokens} tokens)"
            )


if __name__ == "__main__":
    main()
