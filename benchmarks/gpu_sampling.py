"""Tokens a second of the in-process engine on a GPU, end to end, next to `model.generate`.

    python benchmarks/gpu_sampling.py                            all cases
    python benchmarks/gpu_sampling.py --seconds 60               a minute; every case gets a share
    python benchmarks/gpu_sampling.py --cases qwen3-0.6b-64      some cases
    python benchmarks/gpu_sampling.py --device cpu --tiny        a smoke test

A figure is of one call of `generate_all` with nothing cached: scheduling, prefill, sampling with a
seed for each episode, and reading the tokens back. Weights are random, so no episode ends early.

Two calls that sample `PROBE_TOKENS` tokens come first: one warms up, the other is timed. From its
time follows the number of tokens that the measured call can sample within the case's seconds, 128
at most; the table has that number. "ms a step" is the time of the tokens by which the two timed
calls differ, so prefill is in the tokens a second and not in it.
"""

import argparse
import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from gpu_figures import SECONDS_HELP, Figure, deadline_after, report_case
from gpu_models import SMOLLM2, TINY, random_model, release_memory, synchronize
from gymnast.agents import TransformersAgent
from gymnast.types import Sampling

GROUP_SIZE = 8
PROBE_TOKENS = 4
RATE, STEP = "engine", "engine, a step"


@dataclass(frozen=True)
class Case:
    """One workload.

    Attributes:
        model: A name of `gpu_models.SHAPES`.
        episodes: Episodes that are sampled at once.
        prompt_tokens: Tokens of each prompt.
        shared_tokens: How many of them, from the first on, the episodes of a group share.
        sampled_tokens: Tokens sampled for each episode, if the time suffices.
        generate: True to measure `model.generate` as well.
        seconds: The most that the case may take on each side, without loading the model.
    """

    model: str
    episodes: int
    prompt_tokens: int = 300
    shared_tokens: int = 300
    sampled_tokens: int = 128
    generate: bool = False
    seconds: float = 20.0

    @property
    def name(self) -> str:
        """The name on the command line: unique among `CASES`."""
        context = "" if self.prompt_tokens == 300 else f"-{self.prompt_tokens}"
        shared = f"-shared-{self.shared_tokens}" if context and self.shared_tokens else ""
        return f"{self.model}-{self.episodes}{context}{shared}".lower()

    @property
    def title(self) -> str:
        """The case as the table names it."""
        return (
            f"{self.model}, {self.episodes} episodes, prompts of {self.prompt_tokens:,} tokens, "
            f"{self.shared_tokens:,} shared by {GROUP_SIZE}"
        )


CASES = [
    Case(SMOLLM2, 64, generate=True),
    Case(SMOLLM2, 256, generate=True),
    Case("Qwen3-0.6B", 64, generate=True),
    Case("Qwen3-0.6B", 256, generate=True),
    Case("Qwen3-0.6B", 64, prompt_tokens=3_000, shared_tokens=0),
    Case("Qwen3-0.6B", 64, prompt_tokens=3_000, shared_tokens=2_700),
    Case("Qwen3-0.6B", 64, prompt_tokens=16_000, shared_tokens=15_700),
    Case("Qwen3-1.7B", 64),
    Case("Qwen3-1.7B", 128),
    Case("Qwen3-1.7B", 256),
    Case("Qwen3-4B", 64),
]


def tiny(case: Case) -> Case:
    """Reduce a case to one that a CPU plays in a second."""
    return replace(
        case,
        model=TINY,
        episodes=case.episodes // 8,
        prompt_tokens=case.prompt_tokens // 20,
        shared_tokens=case.shared_tokens // 20,
        sampled_tokens=8,
    )


def make_prompts(case: Case, vocabulary: int) -> list[list[int]]:
    """Draw the prompts of a case; the same for the same arguments."""
    draw = torch.Generator().manual_seed(1)

    def tokens(count: int) -> list[int]:
        return torch.randint(5, vocabulary, (count,), generator=draw).tolist()

    prompts = []
    for number in range(case.episodes):
        if number % GROUP_SIZE == 0:
            shared = tokens(case.shared_tokens)
        prompts.append(shared + tokens(case.prompt_tokens - case.shared_tokens))
    return prompts


def measure_engine(model: Any, case: Case, device: str, seconds: float) -> None:
    """Measure the engine and report its figures.

    Args:
        model: Of `random_model`.
        case: The workload.
        device: "cuda" or "cpu".
        seconds: The most that all calls may take together.
    """
    budget = torch.cuda.get_device_properties(0).total_memory // 2 if device == "cuda" else None
    agent = TransformersAgent(
        model,
        max_batch=case.episodes,
        context_length=case.prompt_tokens + case.sampled_tokens,
        kv_budget_bytes=budget,
    )
    prompts = make_prompts(case, model.config.vocab_size)
    deadline = time.perf_counter() + seconds

    def sample(new_tokens: int) -> float | None:
        """Sample so many tokens an episode; return the seconds, or None after the deadline."""
        agent.weights_changed()  # forget the keys and values of the last call
        requests = [
            (prompt, Sampling(max_new_tokens=new_tokens, seed=number))
            for number, prompt in enumerate(prompts)
        ]

        async def generate_all() -> int:
            left = max(0.1, deadline - time.perf_counter())
            completions = await asyncio.wait_for(agent.generate_all(requests), left)
            return sum(len(completion.ids) for completion in completions)

        synchronize(device)
        started = time.perf_counter()
        try:
            sampled = asyncio.run(generate_all())
        except TimeoutError:
            agent.wait_idle()
            return None
        synchronize(device)
        spent = time.perf_counter() - started
        if sampled != case.episodes * new_tokens:
            raise RuntimeError(f"sampled {sampled} tokens, not {case.episodes} x {new_tokens}")
        return spent

    probe = min(PROBE_TOKENS, case.sampled_tokens)
    warm_up_s = sample(probe)
    probe_s = sample(probe) if warm_up_s is not None else None
    if probe_s is None:
        note = f"{probe} tokens an episode, twice, took longer than {seconds:.0f} s"
        Figure(case.title, RATE, None, "tokens/s", note).report()
        return
    left = deadline - time.perf_counter()
    new_tokens = min(case.sampled_tokens, int(probe * 0.8 * left / probe_s))
    spent = sample(new_tokens) if new_tokens > probe else None
    if spent is None:
        new_tokens, spent = probe, probe_s
    rate = case.episodes * new_tokens / spent
    note = f"{new_tokens} tokens an episode"
    Figure(case.title, RATE, round(rate, 1), "tokens/s", note).report()
    if new_tokens > probe:
        step_ms = 1000 * (spent - probe_s) / (new_tokens - probe)
        Figure(case.title, STEP, round(step_ms, 3), "ms", "without prefill").report()


def measure_generate(model: Any, case: Case, device: str, seconds: float) -> None:
    """Measure `model.generate` on the same prompts and report its tokens a second.

    Its own `max_time` ends it after `seconds`; the note has the number of sampled tokens.
    """
    ids = torch.tensor(make_prompts(case, model.config.vocab_size), device=device)  # [B, T]
    for new_tokens in (PROBE_TOKENS, case.sampled_tokens):  # the first warms up
        synchronize(device)
        started = time.perf_counter()
        with torch.inference_mode():
            out = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=True,
                top_k=0,
                max_new_tokens=new_tokens,
                max_time=seconds,
                pad_token_id=0,
            )
        synchronize(device)
        spent = time.perf_counter() - started
    sampled = out.shape[1] - ids.shape[1]
    rate, note = case.episodes * sampled / spent, f"{sampled} tokens an episode"
    Figure(case.title, "generate", round(rate, 1), "tokens/s", note).report()


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the cases and report their figures; return 1 if one failed."""
    names = {case.name: case for case in CASES}
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", nargs="+", choices=names, default=list(names), metavar="CASE")
    parser.add_argument("--seconds", type=float, default=float("inf"), help=SECONDS_HELP)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--tiny", action="store_true", help="tiny cases: does everything run?")
    options = parser.parse_args(arguments)
    deadline = deadline_after(options.seconds)
    cases = [tiny(names[name]) if options.tiny else names[name] for name in options.cases]
    # A case with `generate` has two measurements, each with a share of the time that is left.
    shares = sum(1 + case.generate for case in cases)
    model, loaded, failed = None, "", False
    for case in cases:
        if time.perf_counter() >= deadline:
            Figure(case.title, RATE, None, "tokens/s", "no time was left").report()
            continue
        if case.model != loaded:
            model = None  # frees its memory before the next one is built
            release_memory(options.device)
            model, loaded = random_model(case.model, options.device), case.model
        for measure in [measure_engine, *([measure_generate] if case.generate else [])]:
            left = max(0.1, (deadline - time.perf_counter()) / shares)
            seconds = min(case.seconds, left)
            shares -= 1
            name = RATE if measure is measure_engine else "generate"
            run = partial(measure, model, case, options.device, seconds)
            failed |= not report_case(case.title, name, "tokens/s", run)
            del run  # it holds the model
            release_memory(options.device)
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
