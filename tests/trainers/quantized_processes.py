"""What distributed/test_quantized_processes.py runs in two real processes: one function a scenario.

    python quantized_processes.py FOLDER

As `two_processes.py`, whose environments and settings it takes.
"""

import sys
from pathlib import Path
from typing import Any

import bitsandbytes
import torch

from gymnast.agents import load_model
from two_processes import (
    ROWS,
    TOKENIZER,
    Found,
    error_of,
    fingerprint,
    fsdp2,
    make_trainer,
    run_scenarios,
    train,
)

STEPS: dict[str, Any] = {"steps": 3, "deterministic": True, "eval_rows": ROWS[:3]}


def model(dtype: str = "float32") -> Any:
    """A model of 4-bit weights under adapters."""
    loaded, _ = load_model(
        "tiny:", dtype=dtype, lora={"rank": 4}, quantization="nf4", tokenizer=TOKENIZER
    )
    return loaded


def codes(trained: Any) -> int:
    """The sum of all codes, which no step may change."""
    layers = [m for m in trained.modules() if isinstance(m, bitsandbytes.nn.Linear4bit)]
    return sum(int(layer.weight.data.to(torch.int64).sum()) for layer in layers)


def learned(folder: Path) -> Found:
    """The whole run, in as many processes as there are."""
    trainer, found = train(model=model(), output_dir=folder / "learned", **STEPS)
    return found | {"codes": codes(trainer.model), "before": codes(model())}


def resumed(folder: Path) -> Found:
    """The same run, cut after its second step."""
    settings = {**STEPS, "output_dir": folder / "cut"}
    train(model=model(), **(settings | {"steps": 2}))
    again = make_trainer(model=model(), **settings)
    again.train(resume=True)
    return {"weights": fingerprint(again.model)}


def in_bfloat16(folder: Path) -> Found:
    """Adapters in bfloat16, whose gradients are summed over processes."""
    return train(model=model("bfloat16"), output_dir=folder / "bfloat16", **STEPS)[1]


def divided(folder: Path) -> Found:
    """FSDP2, which would divide the base."""
    with fsdp2():
        return error_of(model=model())


SCENARIOS = [learned, resumed, in_bfloat16, divided]


if __name__ == "__main__":
    run_scenarios(SCENARIOS, Path(sys.argv[1]))
