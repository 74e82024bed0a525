"""Idle threads sleep, and torch takes no more cores than other programs and limits leave."""

import json
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gymnast.cores import cores_left

ENVIRONMENT = """\
import json, os
from pathlib import Path
import torch
from gymnast.envs import Environment

names = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "OMP_NUM_THREADS")
found = {name: os.environ[name] for name in names if name in os.environ}
Path("found.json").write_text(json.dumps(found | {"threads": torch.get_num_threads()}))

class Greeting(Environment):
    \"\"\"Greet.\"\"\"

    def sample_row(self, rng):
        return {"prompt": "Say hello."}

    def reward(self, episode):
        return float(episode.answer == "hello")
"""
SWITCHES = """\
import resource, time
from gymnast.cores import share_cores

share_cores()
import torch

torch.set_num_threads(2)
matrix = torch.ones(256, 256)
before = resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw
for _ in range(300):
    matrix @ matrix
    end = time.perf_counter() + 0.002  # in which only this thread has work
    while time.perf_counter() < end:
        pass
print(resource.getrusage(resource.RUSAGE_SELF).ru_nvcsw - before)
"""
AFTER_TORCH = """\
import torch
from gymnast.cores import share_cores

share_cores()
print(torch.get_num_threads())
"""
DETERMINISTIC = """\
import sys, gymnast.cores as cores

cores.cores_left = lambda *, load=True: 1 if load else 2
cores.share_cores()
import torch
from gymnast.trainers import load_config
from gymnast.trainers.build import build_trainer

before = torch.get_num_threads()
build_trainer(load_config(sys.argv[1], sys.argv[2:]), observer=None)
print(before, torch.get_num_threads())
"""
RUN = """\
model: {name: "tiny:"}
environment: {id: gymnast/Arithmetic-v0, max_turns: 2, context_length: 700}
algorithm: {group_size: 2}
sampling: {max_new_tokens: 8}
trainer: {steps: 1, rows_per_step: 2, learning_rate: 1e-3}
"""
OF_OPENMP = {
    *("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "OMP_NUM_THREADS", "MKL_NUM_THREADS")
}
two_cores = pytest.mark.skipif(cores_left(load=False) < 2, reason="needs two cores")


def variables(**more: str) -> dict[str, str]:
    """The variables of this process without those of OpenMP, which tests set."""
    return {name: value for name, value in os.environ.items() if name not in OF_OPENMP} | more


def run(folder: Path, *command: str, **more: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        env=variables(**more),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done


def seen_by_environment(folder: Path, *command: str, **more: str) -> dict[str, Any]:
    """What an environment sees that a command loads."""
    (folder / "greeting.py").write_text(ENVIRONMENT)
    run(folder, *command, "check", "greeting.py:Greeting", **more)
    found: dict[str, Any] = json.loads((folder / "found.json").read_text())
    return found


@pytest.mark.parametrize("module", ["gymnast", "gymnast.cli"])
def test_commands_let_idle_threads_sleep(module: str, tmp_path: Path) -> None:
    found = seen_by_environment(tmp_path, "-m", module)
    assert found.pop("threads") <= cores_left(load=False)
    # And no number of threads for children.
    assert found == {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "10000"}


@two_cores
def test_commands_leave_variables_of_the_user_alone(tmp_path: Path) -> None:
    given = {"OMP_WAIT_POLICY": "ACTIVE", "OMP_NUM_THREADS": "2"}
    found = seen_by_environment(tmp_path, "-m", "gymnast", LOCAL_WORLD_SIZE="64", **given)
    assert found == given | {"threads": 2}


@pytest.mark.parametrize(
    "given",
    [{"OMP_WAIT_POLICY": "ACTIVE"}, {"GOMP_SPINCOUNT": "5"}, {"KMP_BLOCKTIME": "1"}],
)
def test_a_wait_policy_of_the_user_wins(given: dict[str, str], tmp_path: Path) -> None:
    program = (
        "import os\nfrom gymnast.cores import share_cores\nshare_cores()\n"
        f"print({{name: os.environ[name] for name in {OF_OPENMP} if name in os.environ}})"
    )
    assert run(tmp_path, "-c", program, **given).stdout.strip() == str(given)


@two_cores
@pytest.mark.skipif(sys.platform != "linux", reason="counts switches of GNU OpenMP's threads")
def test_threads_that_wait_sleep(tmp_path: Path) -> None:
    asleep = int(run(tmp_path, "-c", SWITCHES).stdout)
    spinning = int(run(tmp_path, "-c", SWITCHES, OMP_WAIT_POLICY="ACTIVE").stdout)
    assert asleep > 250 > spinning


@two_cores
def test_share_cores_after_torch_limits_threads_and_warns(tmp_path: Path) -> None:
    done = run(tmp_path, "-c", AFTER_TORCH, LOCAL_WORLD_SIZE="64")
    assert done.stdout.strip() == "1"
    assert "share_cores: torch is imported already" in done.stderr


@two_cores
def test_deterministic_runs_ignore_the_load(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(RUN)
    usual = run(tmp_path, "-c", DETERMINISTIC, "run.yaml")
    exact = run(tmp_path, "-c", DETERMINISTIC, "run.yaml", "deterministic=true")
    assert usual.stdout.split() == ["1", "1"]
    assert exact.stdout.split() == ["1", "2"]


# What the kernel reports, as files


def on_machine(folder: Path, files: dict[str, str]) -> partial[int]:
    """Write files under `proc` and `groups`; returns `cores_left` of such a machine."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return partial(cores_left, proc=folder / "proc", groups=folder / "groups")


@pytest.fixture
def sixteen_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)), raising=False)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)


V2, V1 = "0::/jobs/own\n", "5:cpu,cpuacct:/jobs/own\n4:memory:/jobs/own\n0::/\n"
V1_OWN, V1_TOP = "groups/cpu,cpuacct/jobs/own/cpu.cfs_", "groups/cpu/cpu.cfs_"


@pytest.mark.usefixtures("sixteen_cores")
@pytest.mark.parametrize(
    ("files", "threads"),
    [
        ({}, 16),
        ({"proc/self/cgroup": V2}, 16),
        ({"proc/self/cgroup": V2, "groups/jobs/own/cpu.max": "max 100000\n"}, 16),
        ({"proc/self/cgroup": V2, "groups/jobs/own/cpu.max": "250000 100000\n"}, 3),
        ({"proc/self/cgroup": V2, "groups/jobs/own/cpu.max": "20000 100000\n"}, 1),
        (
            {
                "proc/self/cgroup": V2,
                "groups/jobs/own/cpu.max": "max 100000\n",
                "groups/jobs/cpu.max": "400000 100000\n",
            },
            4,
        ),
        ({"proc/self/cgroup": V2, "groups/cpu.max": "200000 100000\n"}, 2),  # in a container
        ({"proc/self/cgroup": V1, f"{V1_OWN}quota_us": "-1", f"{V1_OWN}period_us": "100000"}, 16),
        ({"proc/self/cgroup": V1, f"{V1_OWN}quota_us": "150000", f"{V1_OWN}period_us": "50000"}, 3),
        ({"proc/self/cgroup": V1, f"{V1_TOP}quota_us": "50000", f"{V1_TOP}period_us": "100000"}, 1),
        ({"proc/self/cgroup": V2, "groups/jobs/own/cpu.max": "nonsense"}, 16),
    ],
)
def test_threads_fit_the_quota(files: dict[str, str], threads: int, tmp_path: Path) -> None:
    assert on_machine(tmp_path, files)() == threads


@pytest.mark.usefixtures("sixteen_cores")
@pytest.mark.parametrize(
    ("loadavg", "threads"),
    [
        ("0.10 0.20 0.30 1/900 4242", 16),
        ("5.00 3.00 1.00 6/900 4242", 11),
        ("5.00 3.00 1.00 1/900 4242", 16),  # what was there has ended
        ("0.20 0.10 0.05 9/900 4242", 16),  # a short burst
        ("40.0 40.0 40.0 41/900 4242", 8),  # a share of what everybody wants
        ("nonsense", 16),
    ],
)
def test_threads_leave_cores_to_others(loadavg: str, threads: int, tmp_path: Path) -> None:
    left = on_machine(tmp_path, {"proc/loadavg": loadavg})
    assert left() == threads
    assert left(load=False) == 16


@pytest.mark.usefixtures("sixteen_cores")
def test_local_processes_share_a_quota(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    files = {"proc/self/cgroup": V2, "groups/jobs/own/cpu.max": "800000 100000"}
    assert on_machine(tmp_path, files)() == 2


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="Linux has affinities")
def test_threads_fit_the_affinity(tmp_path: Path) -> None:
    program = (
        "import os\nos.sched_setaffinity(0, [min(os.sched_getaffinity(0))])\n"
        "from gymnast.cores import cores_left\nprint(cores_left())"
    )
    assert run(tmp_path, "-c", program).stdout.strip() == "1"
