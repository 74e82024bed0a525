"""Tokens a second of the in-process engine on a GPU, end to end, next to `model.generate`.

    python benchmarks/gpu_sampling.py                            all cases
    python benchmarks/gpu_sampling.py --seconds 60               a minute; every case gets a share
    python benchmarks/gpu_sampling.py --cases qwen3-0.6b-64      some cases
    python benchmarks/gpu_sampling.py --device cpu --tiny        a smoke test

A figure is of one call of `generate_all` with nothing cached: scheduling, prefill, sampling with a
seed for each episode, and reading the tokens back. Weights are random, so no episode ends early. On
a GPU a case fails if the engine does not sample over pages, by CUDA graphs.

Two calls that sample `PROBE_TOKENS` tokens come first: one warms up, the other is timed. From its
time follows the number of tokens that the measured call can sample within the case's seconds, 128
at most; the table has that number. The call is repeated until no CUDA graph is captured in it: a
run captures each graph once. "a step" is the time of the tokens by which the two timed calls
differ, so prefill is in the tokens a second and not in it.

Two more kinds of cases have files of their own: episodes with tools (`gpu_episodes.py`), and the
difference of the log-probabilities of sampler and learner (`gpu_logprobs.py`).
"""

import argparse
import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

import gpu_episodes
import gpu_logprobs
from gpu_engine import check_path, make_agent, report_engine
from gpu_figures import SECONDS_HELP, Figure, Goal, deadline_after, report_case
from gpu_models import SMOLLM2, TINY, card_name, random_model, release_memory, synchronize
from gymnast.types import Sampling

GROUP_SIZE = 8
PROBE_TOKENS = 4
MOST_CALLS = 5
RATE, STEP, GENERATE = "engine", "engine, a step", "generate"


@dataclass(frozen=True)
class Case:
    """One workload.

    Attributes:
        model: A name of `gpu_models.SHAPES`.
        episodes: Episodes that are sampled at once.
        goal: Tokens a second on an H200.
        prompt_tokens: Tokens of each prompt.
        shared_tokens: How many of them, from the first on, the episodes of a group share.
        sampled_tokens: Tokens sampled for each episode, if the time suffices.
        memory_bound: See `Goal`: reading weights, keys and values takes most of a step.
        generate: True to measure `model.generate` as well.
        seconds: The most that the calls of the engine may take, without loading the model and
            compiling kernels; if there is less time, the cases share it in proportion to this.
    """

    model: str
    episodes: int
    goal: float
    prompt_tokens: int = 300
    shared_tokens: int = 300
    sampled_tokens: int = 128
    memory_bound: bool = False
    generate: bool = False
    seconds: float = 15.0

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


# 64 contexts of 3,000 tokens are 22 GB of keys and values, and 8 of 16,000 with what is not shared
# are 17 GB: 5 and 4 ms of a step.
CASES = [
    Case(SMOLLM2, 64, 17_000, generate=True),
    Case(SMOLLM2, 256, 45_000),
    Case("Qwen3-0.6B", 64, 16_000, generate=True),
    Case("Qwen3-0.6B", 256, 35_000),
    Case("Qwen3-0.6B", 64, 7_000, 3_000, shared_tokens=0, memory_bound=True, seconds=25),
    Case("Qwen3-0.6B", 64, 14_000, 3_000, shared_tokens=2_700, seconds=20),
    Case("Qwen3-0.6B", 64, 8_000, 16_000, shared_tokens=15_700, memory_bound=True, seconds=40),
    Case("Qwen3-1.7B", 64, 13_000),
    Case("Qwen3-1.7B", 128, 16_000),
    Case("Qwen3-1.7B", 256, 29_000),
    Case("Qwen3-4B", 64, 8_500),
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


@dataclass(frozen=True)
class Measurement:
    """Something to measure on one model.

    Attributes:
        name: On the command line; several may have one name.
        title: As the table names it.
        model: A name of `gpu_models.SHAPES`.
        figure: The name of the main figure, and `unit` its unit.
        seconds: See `Case`.
        run: Measures and reports, given the model, the device and the seconds.
        goal: Of the main figure.
    """

    name: str
    title: str
    model: str
    figure: str
    unit: str
    seconds: float
    run: Callable[[Any, str, float], None]
    goal: Goal | None = None


def measurements(*, is_tiny: bool) -> list[Measurement]:
    """Return all measurements, those of one model after each other."""
    found = []
    for full in CASES:
        case = tiny(full) if is_tiny else full
        of_case = partial(Measurement, full.name, case.title, case.model)
        run = partial(measure_engine, case=case)
        found.append(of_case(RATE, "tokens/s", case.seconds, run, goal_of(case)))
        if case.generate:
            run = partial(measure_generate, case=case)
            found.append(of_case(GENERATE, "tokens/s", 10.0, run))
    for episodes in gpu_episodes.CASES:
        small = gpu_episodes.tiny(episodes) if is_tiny else episodes
        run = partial(gpu_episodes.measure, case=small)
        name, title, model = episodes.name, small.title, small.model
        goal = Goal(small.goal)
        found.append(Measurement(name, title, model, gpu_episodes.SHARE, "", 40.0, run, goal))
    precision = gpu_logprobs.TINY_CASE if is_tiny else gpu_logprobs.CASE
    run = partial(gpu_logprobs.measure, case=precision)
    of_precision = (gpu_logprobs.NAME, precision.title, precision.model, gpu_logprobs.DIFFERENCE)
    found.append(Measurement(*of_precision, "nats", 25.0, run))
    order = list(dict.fromkeys(each.model for each in found))
    return sorted(found, key=lambda each: order.index(each.model))


def goal_of(case: Case) -> Goal:
    """Return the goal of a case's tokens a second."""
    return Goal(case.goal, memory_bound=case.memory_bound)


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


@dataclass(frozen=True)
class Call:
    """One timed call of `generate_all`, and the engine's metrics of it."""

    seconds: float
    metrics: dict[str, float]


def measure_engine(model: Any, device: str, seconds: float, *, case: Case) -> None:
    """Measure the engine and report its figures.

    Args:
        model: Of `random_model`.
        device: "cuda" or "cpu".
        seconds: The most that all calls may take together.
        case: The workload.

    Raises:
        RuntimeError: On a GPU, the engine does not sample over pages by CUDA graphs.
    """
    agent = make_agent(model, device, case.episodes, case.prompt_tokens + case.sampled_tokens)
    prompts = make_prompts(case, model.config.vocab_size)
    deadline = time.perf_counter() + seconds

    def sample(new_tokens: int) -> Call | None:
        """Sample so many tokens an episode; return None after the deadline."""
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
        agent.metrics()
        started = time.perf_counter()
        try:
            sampled = asyncio.run(generate_all())
        except TimeoutError:
            agent.wait_idle()
            return None
        spent = time.perf_counter() - started
        synchronize(device)
        if sampled != case.episodes * new_tokens:
            raise RuntimeError(f"sampled {sampled} tokens, not {case.episodes} x {new_tokens}")
        return Call(spent, agent.metrics())

    made = agent.metrics()
    probe = min(PROBE_TOKENS, case.sampled_tokens)
    warm_up = sample(probe)
    probed = sample(probe) if warm_up is not None else None
    if warm_up is None or probed is None:
        note = f"{probe} tokens an episode, twice, took longer than {seconds:.0f} s"
        goal = goal_of(case).compare(None, "tokens/s", card_name(device))
        Figure(case.title, RATE, None, "tokens/s", note, goal).report()
        return
    calls = [warm_up, probed]
    left = deadline - time.perf_counter()
    new_tokens = min(case.sampled_tokens, int(probe * 0.4 * left / probed.seconds))
    measured = probed
    while new_tokens > probe and len(calls) < MOST_CALLS:
        again = sample(new_tokens)
        if again is None:
            break
        measured = again
        calls.append(again)
        if not again.metrics["engine/captures"]:
            break
    new_tokens = probe if measured is probed else new_tokens
    check_path(agent, device, [made, *(call.metrics for call in calls)])
    rate = case.episodes * new_tokens / measured.seconds
    note = f"{new_tokens} tokens an episode"
    if measured.metrics["engine/captures"]:
        note += f", {measured.metrics['engine/captures']:.0f} graphs captured meanwhile"
    goal = goal_of(case).compare(rate, "tokens/s", card_name(device))
    Figure(case.title, RATE, round(rate, 1), "tokens/s", note, goal).report()
    if new_tokens > probe:
        step_ms = 1000 * (measured.seconds - probed.seconds) / (new_tokens - probe)
        Figure(case.title, STEP, round(step_ms, 3), "ms", "without prefill").report()
    all_metrics = [made, *(call.metrics for call in calls)]
    report_engine(case.title, agent, measured.seconds, measured.metrics, all_metrics)


def measure_generate(model: Any, device: str, seconds: float, *, case: Case) -> None:
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
    Figure(case.title, GENERATE, round(rate, 1), "tokens/s", note).report()


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the cases and report their figures; return 1 if one failed."""
    names = list(dict.fromkeys(each.name for each in measurements(is_tiny=False)))
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cases", nargs="+", choices=names, default=names, metavar="CASE")
    parser.add_argument("--seconds", type=float, default=float("inf"), help=SECONDS_HELP)
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--tiny", action="store_true", help="tiny cases: does everything run?")
    options = parser.parse_args(arguments)
    logging.basicConfig(format="%(message)s")
    logging.getLogger("gymnast").setLevel(logging.INFO)  # why there are no pages, or no graphs
    deadline = deadline_after(options.seconds)
    chosen = [m for m in measurements(is_tiny=options.tiny) if m.name in options.cases]
    model, loaded, failed = None, "", False
    for number, one in enumerate(chosen):
        left = deadline - time.perf_counter()
        goal = one.goal.compare(None, one.unit, card_name(options.device)) if one.goal else ""
        if left <= 0:
            note = "no time was left"
            Figure(one.title, one.figure, None, one.unit, note, goal).report()
            continue
        if one.model != loaded:
            model = None  # frees its memory before the next one is built
            release_memory(options.device)
            model, loaded = random_model(one.model, options.device), one.model
            left = max(0.1, deadline - time.perf_counter())
        share = one.seconds / sum(each.seconds for each in chosen[number:])
        run = partial(one.run, model, options.device, min(one.seconds, left * share))
        failed |= not report_case(one.title, one.figure, one.unit, run, goal)
        del run  # it holds the model
        release_memory(options.device)
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
