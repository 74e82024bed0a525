"""Runs of several processes: starting two, and comparing what two runs left behind."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from clocks import without_clocks
from gymnast.agents.loading.tiny import tiny_model
from gymnast.trainers.saving.rollout_files import read_rollouts

Found = list[dict[str, Any]]  # of each process, by scenario


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def in_two_processes(script: Path, folder: Path, *, longest_s: float) -> Found:
    """Run `script FOLDER` in two processes; returns what each wrote to FOLDER/<process>.json.

    Args:
        script: Ends by `run_scenarios`.
        folder: Of the results, and of what the scenarios write.
        longest_s: For all scenarios; one that hangs fails then.
    """
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    shared["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))  # pytest's, with benchmarks
    processes = []
    for rank in ("0", "1"):
        environment = (
            os.environ | shared | {"RANK": rank, "LOCAL_RANK": rank, "OMP_NUM_THREADS": "1"}
        )
        with (folder / f"{rank}.log").open("w") as log:
            command = [sys.executable, str(script), str(folder)]
            processes.append(subprocess.Popen(command, env=environment, stdout=log, stderr=log))
    try:
        codes = [process.wait(longest_s) for process in processes]
    except subprocess.TimeoutExpired:
        codes = [-1, -1]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    logs = "\n".join((folder / f"{rank}.log").read_text() for rank in (0, 1))
    assert codes == [0, 0], logs
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 1)]


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def written(run: Path) -> list[dict[str, Any]]:
    """metrics.jsonl without what is measured by a clock."""
    return [without_clocks(line) for line in lines(run / "metrics.jsonl")]


def assert_same_run(ours: Path, theirs: Path) -> None:
    """Equal but for the last bits, which depend on what shares a batch."""
    mine, others = written(ours), written(theirs)
    assert [line["step"] for line in mine] == [0, 1, 2, 3, 3]
    for one, other in zip(mine, others, strict=True):
        assert one == pytest.approx(other, rel=1e-4, abs=1e-6)
    assert any(line.get("grad_norm", 0) > 0 for line in mine)


def sampled(run: Path) -> dict[str, list[Any]]:
    """The tokens of every episode, by file."""
    return {
        path.name: [(s.group, s.trajectory.ids, s.trajectory.seed) for s in read_rollouts(path)]
        for path in sorted((run / "rollouts").iterdir())
    }


@torch.no_grad()
def difference(ours: Path, theirs: Path) -> float:
    """Of two trained models, as a share of what training changed."""
    mine, other = (
        torch.cat(
            [p.flatten() for p in AutoModelForCausalLM.from_pretrained(run / "model").parameters()]
        )
        for run in (ours, theirs)
    )
    start = torch.cat([p.flatten() for p in tiny_model().parameters()])
    return float((mine - other).norm() / (other - start).norm())


def weights(run: Path) -> torch.Tensor:
    """Of a run's trained model, in one row."""
    tensors = load_file(run / "model" / "model.safetensors")
    return torch.cat([tensors[name].float().flatten() for name in sorted(tensors)])
