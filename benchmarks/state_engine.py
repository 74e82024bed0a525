"""Sampling with states: sequences that share forward passes, beside one sequence a pass.

`python benchmarks/state_engine.py` plays 16 episodes of three turns (four prompts of unequal
lengths, four members each) through models of three kinds, in turn with and without shared passes,
and prints seconds on the clock and of the CPU, and sampled tokens a second. One torch thread.
"""

import argparse
import statistics
import time
import warnings
from collections import Counter
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import torch
import transformers

from gymnast.agents.caches.own_forward import OwnForward
from gymnast.agents.engine.request import Request
from gymnast.agents.engine.state_engine import StateEngine
from gymnast.types import Completion, Sampling
from model_contract import tokens
from model_families import tiny

GROUPS, MEMBERS, TURNS, NEW_TOKENS = 4, 4, 3, 32
TARGET = 3.0  # times the tokens a second of one sequence a pass
SHAPE: dict[str, Any] = {
    "vocab_size": 4096,
    "hidden_size": 512,
    "max_position_embeddings": 4096,
    "initializer_range": 0.02,
}
ATTENTION: dict[str, Any] = {
    "intermediate_size": 1408,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "num_hidden_layers": 8,
}
MODELS: dict[str, dict[str, Any]] = {
    "qwen3_5_text": {
        **ATTENTION,
        "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 2,
        "linear_num_key_heads": 4,
        "linear_num_value_heads": 8,
        "linear_key_head_dim": 64,
        "linear_value_head_dim": 64,
    },
    "lfm2": {**ATTENTION, "layer_types": (["conv"] * 3 + ["full_attention"]) * 2},
    "mamba2": {
        "num_hidden_layers": 8,
        "num_heads": 16,
        "head_dim": 64,
        "expand": 2,
        "state_size": 64,
        "chunk_size": 64,
    },
}


@dataclass(frozen=True)
class Cost:
    """What one way of playing took."""

    wall_s: float
    cpu_s: float
    sampled: int
    passes: int


def engine_for(model: Any, *, shared: bool) -> StateEngine:
    """An engine whose sequences share passes, or one as it is for models that cannot."""
    forward = OwnForward(model)
    assert forward.batching is not None
    if not shared:
        forward.batching = None
    return StateEngine(forward, max_batch=64, prefill_tokens=1024)


def play(engine: StateEngine) -> Cost:
    """Play all episodes; a turn begins as soon as the one before has ended."""
    engine.cache.clear()
    count: Counter[str] = Counter()
    hook = engine.forward.model.register_forward_pre_hook(lambda *_: count.update(["passes"]))
    wall, cpu = time.perf_counter(), time.process_time()
    waiting = [_begin(engine, _prompt(n), n, turn=0) for n in range(GROUPS * MEMBERS)]
    sampled = 0
    while waiting:
        engine.step()
        ended = [each for each in waiting if each[2].done()]
        waiting = [each for each in waiting if not each[2].done()]
        for number, context, future, turn in ended:
            ids = future.result().ids
            sampled += len(ids)
            if turn + 1 < TURNS:
                seed = number * TURNS + turn
                context = context + ids + tokens(seed, 5 + 11 * seed % 29)
                waiting.append(_begin(engine, context, number, turn + 1))
    hook.remove()
    return Cost(time.perf_counter() - wall, time.process_time() - cpu, sampled, count["passes"])


Turn = tuple[int, list[int], "Future[Completion]", int]


def _begin(engine: StateEngine, context: list[int], number: int, turn: int) -> Turn:
    future: Future[Completion] = Future()
    # Completions end at different times, as they do with stop tokens.
    most = NEW_TOKENS // 2 + (7 * number + 5 * turn) % NEW_TOKENS
    sampling = Sampling(max_new_tokens=most, seed=number)
    engine.waiting.append(Request(context, sampling, future, limit=4096 - len(context)))
    return number, context, future, turn


def _prompt(number: int) -> list[int]:
    group = number // MEMBERS
    return tokens(100 + group, 96 + 40 * group)


def compare(family: str, repetitions: int) -> float:
    """Play both ways in turn and print what they took; returns how many times faster."""
    model = tiny(family, **SHAPE | MODELS[family])
    engines = {
        "one a pass": engine_for(model, shared=False),
        "shared": engine_for(model, shared=True),
    }
    costs: dict[str, list[Cost]] = {name: [] for name in engines}
    for _ in range(repetitions):
        for name, engine in engines.items():
            costs[name].append(play(engine))
    parameters = sum(parameter.numel() for parameter in model.parameters()) / 1e6
    print(f"{family}, {parameters:.1f}M parameters, float32")
    rates = {}
    for name, each in costs.items():
        wall_s = statistics.median(cost.wall_s for cost in each)
        cpu_s = statistics.median(cost.cpu_s for cost in each)
        rates[name] = each[0].sampled / wall_s
        print(
            f"  {name:10}  {wall_s:6.2f} s, CPU {cpu_s:6.2f} s, {rates[name]:6.0f} tokens/s, "
            f"{each[0].passes} passes"
        )
    times = rates["shared"] / rates["one a pass"]
    print(f"  {times:.1f} times the tokens a second (target {TARGET:g})", flush=True)
    return times


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("families", nargs="*", default=list(MODELS))
    parser.add_argument("--repetitions", type=int, default=3)
    settings = parser.parse_args()
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    for name in settings.families or list(MODELS):
        compare(name, settings.repetitions)
