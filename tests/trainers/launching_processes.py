"""What test_launched_processes.py runs in two real processes: a run that starts one vLLM server.

python launching_processes.py FOLDER      FOLDER/command has the path of a vLLM
"""

import sys
from pathlib import Path

import torch

from gymnast.agents import VLLMAgent
from gymnast.agents.loading.tiny import tiny_model
from two_processes import Found, run_scenarios, train
from vllm_fixtures import ENVIRONMENT, OPTIONS


def launched(folder: Path) -> Found:
    """Two steps."""
    launch = {
        "command": [(folder / "command").read_text()],
        "options": list(OPTIONS),
        "environment": ENVIRONMENT,
    }
    trainer, found = train(
        model=tiny_model().to(torch.bfloat16),
        agent={"backend": "vllm", "launch": launch},
        output_dir=folder / "run",
        steps=2,
        deterministic=False,
    )
    assert isinstance(trainer.agent, VLLMAgent)
    found["urls"] = trainer.agent.urls
    trainer.agent.close()
    return found


if __name__ == "__main__":
    run_scenarios([launched], Path(sys.argv[1]))
