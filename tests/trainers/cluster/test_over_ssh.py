"""examples/cluster/ray_over_ssh.sh, with an `ssh` in its place that starts the node here."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SSH = '#!/bin/bash\nshift\nexec bash -c "$*"\n'
SMALL = ["trainer.steps=1", "trainer.checkpoint_every_steps=0", "evaluation.rows=2"]

pytestmark = [pytest.mark.ray, pytest.mark.slow]


def own_address() -> str:
    """This machine's address in its network; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as outside:
        outside.connect(("192.0.2.1", 9))
        return str(outside.getsockname()[0])


def test_a_run_plays_on_a_node_over_ssh_and_leaves_nothing(tmp_path: Path) -> None:
    ssh = tmp_path / "ssh"
    ssh.write_text(SSH)
    ssh.chmod(0o755)
    path = os.pathsep.join([str(tmp_path), str(Path(sys.executable).parent), os.environ["PATH"]])
    script = ROOT / "examples/cluster/ray_over_ssh.sh"
    run = [
        "train",
        "examples/tiny.yaml",
        *SMALL,
        "rollouts.workers=1",
        f"output_dir={tmp_path}/run",
    ]
    ended = subprocess.run(
        ["bash", script, own_address(), "node", *run],
        cwd=ROOT,
        env={**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert (tmp_path / "run/model").is_dir()
    left = subprocess.run(["pgrep", "-f", "ray start"], capture_output=True, text=True)
    assert not left.stdout
