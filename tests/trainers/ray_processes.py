"""What test_trainer_on_workers.py runs in two training processes: the same run, here and on Ray.

    python ray_processes.py FOLDER

Each process writes to FOLDER/<process>.json what the run came to. RAY_ADDRESS names the cluster.
"""

import hashlib
import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch

from gymnast.agents import load_model
from gymnast.trainers import Trainer
from gymnast.types import Sampling

ROWS: list[dict[str, Any]] = [{"prompt": f"{i} times 3?", "answer": str(3 * i)} for i in range(8)]


def trained(**settings: Any) -> dict[str, Any]:
    """Two steps of a deterministic run: what was played, and the weights after it."""
    torch.manual_seed(0)
    model, tokenizer = load_model("tiny:")
    trainer = Trainer(
        *(model, tokenizer, "gymnast/Arithmetic-v0", ROWS),
        **settings,
        steps=2,
        rows_per_step=4,
        group_size=2,
        learning_rate=1e-3,
        sampling=Sampling(max_new_tokens=12),
        eval_rows=ROWS[:2],
        deterministic=True,
        observer=None,
    )
    summary = trainer.train()
    weights = hashlib.sha256()
    for _, weight in sorted(model.named_parameters()):
        weights.update(weight.detach().numpy().tobytes())
    return {"weights": weights.hexdigest(), "before": summary["before"], "steps": summary["steps"]}


if __name__ == "__main__":
    warnings.simplefilter("error")
    torch.set_num_threads(1)
    found = {
        "here": trained(),
        "on workers": trained(rollouts_backend="ray", rollouts_workers=1),
    }
    Path(sys.argv[1], f"{os.environ.get('RANK', '0')}.json").write_text(json.dumps(found))
