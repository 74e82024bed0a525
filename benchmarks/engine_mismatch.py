"""How far the engine and the trainer disagree on the log-probabilities of what was sampled.

    python benchmarks/engine_mismatch.py

Small random models in bfloat16, wide enough in their logits to be as sure as trained ones, sample
with the engine; then the trainer's `Policy` computes the same tokens. Nothing is trained, so any
difference is rounding: of all layers, of the head, and of routers whose best experts are nearly
equal.
"""

import asyncio
import platform
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from gymnast.agents import TransformersAgent
from gymnast.agents.models.float32_head import use_float32_head
from gymnast.trainers.learner.policy.micro_batches import CreditedTrajectory, micro_batch
from gymnast.trainers.learner.policy.policy import Policy
from gymnast.types import Completion, Sampling, Span, StopReason, Trajectory
from model_families import VOCABULARY, tiny

PROMPTS, NEW_TOKENS = 32, 64
# More than the families' tiny models have, as real ones do: the nearer, the likelier to change.
EXPERTS = dict.fromkeys(["num_experts", "num_local_experts", "n_routed_experts"], 32) | {
    "num_experts_per_tok": 4
}
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
        experts=experts(completion),
    )


def experts(completion: Completion) -> np.ndarray | None:
    """The experts of all tokens; the last one is never computed."""
    if completion.experts is None:
        return None
    return np.pad(completion.experts, ((0, 1), (0, 0), (0, 0)), constant_values=-1)


def mismatch(model: Any, *, replay_routing: bool = False) -> Mismatch:
    """Sample, and compute what was sampled again."""
    agent = TransformersAgent(model, keep_experts=replay_routing)
    requests = [(c, Sampling(max_new_tokens=NEW_TOKENS, seed=i)) for i, c in enumerate(contexts())]
    with agent.awake():
        completions = asyncio.run(agent.generate_all(requests))
    episodes = [trajectory(c, done) for (c, _), done in zip(requests, completions, strict=True)]
    batch = micro_batch([CreditedTrajectory(t, torch.ones(1)) for t in episodes], model.device)
    with torch.no_grad():
        policy = Policy(model, replay_routing=replay_routing)
        difference = (policy(batch) - batch.sampled_logprobs).abs()
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
            show(family, "float32 head" if wide else "bfloat16 head", mismatch(model))
    packed = ["qwen3_moe", "mixtral", "gpt_oss", "deepseek_v3", "granitemoe", "olmoe"]
    for family in [*packed, "lfm2_moe", "qwen3_5_moe_text", "granitemoehybrid"]:
        for replayed in (False, True):
            found = mismatch(in_bfloat16(family, **EXPERTS), replay_routing=replayed)
            show(family, "engine's experts" if replayed else "own experts", found)


def show(family: str, what: str, found: Mismatch) -> None:
    """Print a line."""
    print(
        f"{family:16s} {what:17s} mean {found.mean:.5f} largest {found.largest:.5f} "
        f"({found.tokens} tokens)"
    )


if __name__ == "__main__":
    main()
