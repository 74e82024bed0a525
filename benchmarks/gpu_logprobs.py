"""The difference of the log-probabilities of sampler and learner, in bfloat16.

A case of `gpu_sampling.py`: the engine samples, and the trainer's `Policy` computes the same tokens
in packed micro-batches, as a training step does. Nothing is trained, so every difference is
rounding. The table has the mean absolute difference, and the mean distance of the sampler, of the
learner and of the model's own forward from a forward in float32; each without and with
`model.float32_head`. A run reports the difference as `engine/logprob_difference`.

The weights are random. Their head is scaled (`HEAD_SCALE`) until logits are as far apart as trained
ones: those of a random model are nearly equal, and so is their rounding.
"""

import asyncio
import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from engine_mismatch import HEAD_SCALE, trajectory
from gpu_engine import check_path, make_agent
from gpu_figures import Figure, Goal
from gpu_models import TINY, card_name, release_memory
from gymnast.agents.models.float32_head import use_float32_head
from gymnast.trainers.learner.policy.micro_batches import CreditedTrajectory, micro_batch
from gymnast.trainers.learner.policy.policy import Policy
from gymnast.types import Completion, Sampling

NAME = "qwen3-0.6b-logprobs"
DIFFERENCE = "sampler to learner"
MICRO_BATCH = 8  # episodes
# The sampler may be farther from float32 than the model's own forward by this factor.
FARTHER = 1.1


@dataclass(frozen=True)
class PrecisionCase:
    """One workload.

    Attributes:
        model: A name of `gpu_models.SHAPES`.
        episodes: Sampled at once.
        prompt_tokens: Of each episode.
        sampled_tokens: Of each episode.
    """

    model: str = "Qwen3-0.6B"
    episodes: int = 64
    prompt_tokens: int = 100
    sampled_tokens: int = 96

    @property
    def title(self) -> str:
        """The case as the table names it."""
        tokens = self.episodes * self.sampled_tokens
        return f"{self.model}, bfloat16, mean |difference| of {tokens:,} log-probabilities"


CASE = PrecisionCase()
TINY_CASE = PrecisionCase(TINY, episodes=8, prompt_tokens=20, sampled_tokens=32)


def measure(model: Any, device: str, seconds: float, *, case: PrecisionCase) -> None:
    """Report the differences without and with a head in float32.

    Args:
        model: Of `random_model`; stays as it is.
        device: "cuda" or "cpu".
        seconds: Not needed: it takes a few.
        case: The workload.

    Raises:
        RuntimeError: On a GPU, the engine does not sample over pages by CUDA graphs.
    """
    for wide, most in ((False, 0.014), (True, 0.008)):
        sampler = copy.deepcopy(model).bfloat16()
        with torch.no_grad():
            sampler.get_output_embeddings().weight.mul_(HEAD_SCALE)
        exact = copy.deepcopy(sampler).float()
        if wide:
            use_float32_head(sampler)
        name = "float32 head" if wide else "bfloat16 head"
        _report(sampler, exact, device, case, name, Goal(most, at_least=False))
        del sampler, exact
        release_memory(device)


def _report(
    model: Any, exact: Any, device: str, case: PrecisionCase, head: str, goal: Goal
) -> None:
    """Measure one model and report its figures.

    Args:
        model: That samples and learns.
        exact: The same in float32.
        device: "cuda" or "cpu".
        case: The workload.
        head: The name of the model's head.
        goal: Of the difference between sampler and learner.
    """
    draw = torch.Generator().manual_seed(2)
    shape = (case.episodes, case.prompt_tokens)
    prompts = torch.randint(5, model.config.vocab_size, shape, generator=draw).tolist()
    agent = make_agent(model, device, case.episodes, case.prompt_tokens + case.sampled_tokens)
    made = agent.metrics()
    requests = [
        (prompt, Sampling(max_new_tokens=case.sampled_tokens, seed=number))
        for number, prompt in enumerate(prompts)
    ]
    completions = asyncio.run(agent.generate_all(requests))
    agent.weights_changed()
    check_path(agent, device, [made, agent.metrics()])
    sampled = torch.tensor([each.logprobs for each in completions]).flatten()
    learned = learner_logprobs(model, prompts, completions)
    own = forward_logprobs(model, prompts, completions)
    reference = forward_logprobs(exact, prompts, completions)
    card = card_name(device)

    def report(name: str, first: torch.Tensor, second: torch.Tensor, goal: Goal | None) -> float:
        value = float((first.double() - second.double()).abs().mean())
        compared = goal.compare(value, "nats", card) if goal else ""
        Figure(case.title, f"{name}, {head}", value, "nats", goal=compared).report()
        return value

    report(DIFFERENCE, sampled, learned, goal)
    eager = report("model's own forward to float32", own, reference, None)
    farthest = Goal(FARTHER * eager, at_least=False)
    report("sampler to float32", sampled, reference, farthest)
    report("learner to float32", learned, reference, None)


@torch.no_grad()
def learner_logprobs(
    model: Any, prompts: Sequence[list[int]], completions: Sequence[Completion]
) -> torch.Tensor:
    """Compute the log-probabilities of completions as a training step does; [n]."""
    policy = Policy(model)
    found = []
    for start in range(0, len(prompts), MICRO_BATCH):
        pairs = zip(prompts[start:], completions[start : start + MICRO_BATCH], strict=False)
        episodes = [CreditedTrajectory(trajectory(*pair), torch.ones(1)) for pair in pairs]
        found.append(policy(micro_batch(episodes, model.device)).float().cpu())
    return torch.cat(found)


@torch.no_grad()
def forward_logprobs(
    model: Any, prompts: Sequence[list[int]], completions: Sequence[Completion]
) -> torch.Tensor:
    """Compute them by the model's own forward, one episode at a time; [n]."""
    found = []
    for prompt, completion in zip(prompts, completions, strict=True):
        ids = torch.tensor([prompt + completion.ids], device=model.device)
        logits = model(input_ids=ids, use_cache=False, logits_to_keep=len(completion.ids) + 1)
        logprobs = logits.logits[0, :-1].float().log_softmax(-1)  # [T, V]
        found.append(logprobs.gather(1, ids[0, len(prompt) :, None])[:, 0].cpu())
    return torch.cat(found)
