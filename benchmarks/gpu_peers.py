"""Figures of other trainers that their projects publish, for the page of results.

TRL with Liger's kernels is measured in the same call (`gpu_training.py`); these are not, and come
from another card.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Published:
    """One published figure of training on one GPU.

    Attributes:
        trainer: The project.
        case: The case of `gpu_training.py` that is like it.
        workload: The model and its sequences.
        card: The GPU.
        rate: Tokens a second.
        mfu: As the project counts it.
        memory_gib: The peak.
        source: The repository, the file and its commit.
    """

    trainer: str
    case: str
    workload: str
    card: str
    rate: float
    mfu: float
    memory_gib: float
    source: str


_BASELINES = "PrimeIntellect-ai/prime-rl, benchmarks/baselines"
PUBLISHED = [
    Published(
        "prime-rl",
        "lora",
        "Qwen3-4B, adapters of rank 16, 2 sequences of 16,384 tokens, one at a time, layers "
        "recomputed, FlashAttention 3",
        "H100 80GB HBM3",
        rate=6_038,
        mfu=0.210,
        memory_gib=23.9,
        source=f"{_BASELINES}/benchmark-8xh100-Qwen--Qwen3-4B-Instruct-2507-rl-16-1gpu-Recompute-"
        "flash_attention_3-16384-cp1-ep1.json, commit 8dcafdd0",
    ),
    Published(
        "prime-rl",
        "long",
        "Qwen3-0.6B, all weights, 2 sequences of 65,536 tokens, one at a time, layers recomputed, "
        "FlashAttention 3",
        "H100 80GB HBM3",
        rate=10_147,
        mfu=0.268,
        memory_gib=19.6,
        source=f"{_BASELINES}/benchmark-1xh100-Qwen--Qwen3-0.6B-rl-full-1gpu-Recompute-"
        "flash_attention_3-65536-cp1-ep1.json, commit 767aaadf",
    ),
]


def section() -> list[str]:
    """Return the lines of the page that show them."""
    lines = [
        "## Published by others",
        "",
        "Not measured here. The case is the one of `benchmarks/gpu_training.py` that is like it.",
        "",
        "| trainer | case | workload | card | tokens/s | MFU | peak memory | source |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for each in PUBLISHED:
        cells = (
            *(each.trainer, f"`{each.case}`", each.workload, each.card, f"{each.rate:,.0f}"),
            *(f"{each.mfu:.1%}", f"{each.memory_gib} GiB", each.source),
        )
        lines.append("| " + " | ".join(cells) + " |")
    return lines
