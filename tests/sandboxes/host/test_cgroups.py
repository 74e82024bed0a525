"""Control groups of boxes, where this machine lets the tests make some."""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gymnast.sandboxes.host import cgroups
from gymnast.sandboxes.host.cgroups import Groups, make_groups, remove_group, sweep_groups
from gymnast.sandboxes.lifetime.owner import folder_prefix

MIB = 1 << 20
Make = Callable[..., Groups]


@pytest.fixture
def make() -> Iterator[Make]:
    """Makes groups, which are removed after the test."""
    made: list[Groups] = []

    def make(name: str, **limits: float) -> Groups:
        wanted = {"memory_bytes": 64 * MIB, "processes": 8, "cpus": 0.5, **limits}
        made.append(make_groups(f"{folder_prefix()}{name}", **wanted))  # type: ignore[arg-type]
        if set(made[-1].folders) != {"memory", "pids", "cpu"}:
            pytest.skip(f"control groups can be made for {sorted(made[-1].folders)} only")
        return made[-1]

    yield make
    for groups in made:
        for folder in groups.folders.values():
            remove_group(folder)


def run_in(groups: Groups, program: str) -> "subprocess.CompletedProcess[str]":
    """Run Python in groups."""
    join = " ".join(f"echo $$ > {file};" for file in groups.to_join)
    command = ["sh", "-c", f'{join} exec python3 -c "$0"', program]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_memory_of_all_together_is_limited_and_what_is_killed_counted(make: Make) -> None:
    groups = make("memory")
    program = """
import os
for _ in range(4):
    if not os.fork():
        held = bytearray(30 << 20)
        os.read(0, 1)
        os._exit(0)
print(sum(os.wait()[1] != 0 for _ in range(4)))
"""
    ended = run_in(groups, program.replace("os.read(0, 1)", "__import__('time').sleep(2)"))
    assert ended.returncode != 0 or int(ended.stdout) >= 2
    assert groups.oom_counter is not None
    counted = [line for line in groups.oom_counter.read_text().splitlines() if "oom_kill " in line]
    assert int(counted[0].split()[1]) >= 1


def test_processes_are_limited(make: Make) -> None:
    program = """
import os, time
made = 0
try:
    for _ in range(50):
        if not os.fork():
            time.sleep(1)
            os._exit(0)
        made += 1
except OSError:
    pass
print(made)
"""
    assert run_in(make("pids", processes=8), program).stdout == "7\n"


def test_removing_kills_what_is_inside(make: Make) -> None:
    groups = make("kill")
    join = " ".join(f"echo $$ > {file};" for file in groups.to_join)
    with subprocess.Popen(["sh", "-c", f"{join} exec sleep 600"]) as process:
        pids = groups.folders["pids"] / "cgroup.procs"
        while str(process.pid) not in pids.read_text().split():
            assert process.poll() is None
        for folder in groups.folders.values():
            remove_group(folder)
        assert process.wait(10) == -9
    assert not any(folder.exists() for folder in groups.folders.values())


def test_a_sweep_removes_those_whose_name_is_wanted(make: Make) -> None:
    gone, kept = make("gone"), make("kept")
    sweep_groups(lambda name: name == gone.folders["memory"].name)
    assert not any(folder.exists() for folder in gone.folders.values())
    assert all(folder.exists() for folder in kept.folders.values())


VERSION_2 = "30 25 0:26 {root} {mount} rw,nosuid - cgroup2 cgroup2 rw,nsdelegate"


def tree(path: Path, controllers: str) -> Path:
    path.mkdir(parents=True)
    (path / "cgroup.subtree_control").write_text(controllers)
    (path / "cgroup.procs").write_text("")
    return path


def parents(monkeypatch: pytest.MonkeyPatch, mountinfo: str, own: str) -> dict[str, Path]:
    """What is found where the kernel says this."""
    read_text = Path.read_text

    def said(path: Path, *arguments: str) -> str:
        known = {"/proc/self/mountinfo": mountinfo, "/proc/self/cgroup": own}
        return known.get(str(path)) or read_text(path, *arguments)

    monkeypatch.setattr(Path, "read_text", said)
    cgroups._parents.cache_clear()
    try:
        return cgroups._parents(os.getpid())
    finally:
        cgroups._parents.cache_clear()


def test_in_version_2_a_group_stands_beside_the_runs_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slices = tree(tmp_path / "user.slice", "memory pids")
    tree(slices / "run.scope", "")
    mountinfo = VERSION_2.format(root="/", mount=tmp_path)
    found = parents(monkeypatch, mountinfo, "0::/user.slice/run.scope\n")
    assert found == {"memory": slices, "pids": slices}


def test_none_where_a_container_hides_the_way_to_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree(tmp_path / "own", "memory pids cpu")
    mountinfo = VERSION_2.format(root="/docker/1234", mount=tmp_path)
    assert parents(monkeypatch, mountinfo, "0::/../other\n") == {}
    assert parents(monkeypatch, mountinfo, "0::/docker/12345\n") == {}


def test_in_version_1_a_group_is_below_the_runs_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tree(tmp_path / "memory/job", "")
    together = tree(tmp_path / "cpu,cpuacct", "")
    mountinfo = (
        f"31 30 0:33 / {tmp_path}/memory rw - cgroup cgroup rw,memory\n"
        f"32 30 0:34 /job {together} rw - cgroup cgroup rw,cpu,cpuacct\n"
    )
    found = parents(monkeypatch, mountinfo, "4:memory:/job\n3:cpu,cpuacct:/job\n0::/\n")
    assert found == {"memory": own, "cpu": together}
