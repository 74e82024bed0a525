"""Bubblewrap's boxes: when they are refused, whose processes they are, what they leave."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gymnast.sandboxes import SandboxSpec
from gymnast.sandboxes.host import bubblewrap_view
from gymnast.sandboxes.host.bubblewrap import BubblewrapSandbox
from gymnast.sandboxes.host.cgroups import make_groups
from gymnast.sandboxes.lifetime.owner import MARK_VARIABLE
from sandbox_fixtures import skip_without_bubblewrap

MIB = 1 << 20


def refused_with(path: Path) -> str:
    """What a process says whose programs are those of a folder."""
    program = (
        "from gymnast.sandboxes import open_sandbox\n"
        "try:\n    open_sandbox('bubblewrap')\nexcept Exception as error:\n    print(error)"
    )
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PATH": str(path)},
        capture_output=True,
        text=True,
    ).stdout


def test_without_bwrap_it_says_so(tmp_path: Path) -> None:
    assert "there is no bwrap on the PATH" in refused_with(tmp_path)


@pytest.mark.parametrize("version", ["bubblewrap 0.7.9", "what?"])
def test_an_old_bwrap_is_refused(version: str, tmp_path: Path) -> None:
    bwrap = tmp_path / "bwrap"
    bwrap.write_text(f"#!/bin/sh\necho '{version}'\n")
    bwrap.chmod(0o755)
    assert f"{version} is too old; it takes 0.8 or newer" in refused_with(tmp_path)


def test_roots_boxes_are_users_of_their_own() -> None:
    skip_without_bubblewrap()
    with BubblewrapSandbox() as one, BubblewrapSandbox() as other:
        users = [box.exec(["id", "-u"]).stdout.strip() for box in (one, other)]
    if os.geteuid() == 0:
        assert users[0] != users[1]
    assert "0" not in users


def test_memory_of_all_together_is_limited_where_there_are_control_groups() -> None:
    skip_without_bubblewrap()
    groups = make_groups("gymnast-try", memory_bytes=64 * MIB, processes=8, cpus=1.0)
    for folder in set(groups.folders.values()):
        folder.rmdir()
    if "memory" not in groups.folders:
        pytest.skip("this process may make no control group for memory")
    with BubblewrapSandbox(SandboxSpec(memory_bytes=64 * MIB)) as box:
        ended = box.exec(["python3", "-c", "x = bytearray(200_000_000)"])
        assert ended.verdict == "oom"
        assert box.python("1").stdout == "1\n"


@pytest.mark.parametrize("overlay", ["overlay", "no such type"])
def test_the_hosts_programs_are_there_with_and_without_overlays(
    overlay: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    skip_without_bubblewrap()
    monkeypatch.setattr(bubblewrap_view, "_OVERLAY", overlay)
    with BubblewrapSandbox() as box:
        assert {*box.exec("ls /usr").stdout.split()} == {*os.listdir("/usr")}
        assert box.exec(["python3", "-c", "print(6 * 7)"]).stdout == "42\n"
        assert box.exec("echo a > /dev/null && head -c 3 /dev/zero | wc -c").stdout == "3\n"
        for path in ("/usr/file", "/dev/file", "/proc/self/oom_score_adj"):
            assert box.exec(f"echo 0 > {path}").verdict == "nonzero", path


def test_the_process_beside_a_box_shows_whose_it_is() -> None:
    """A worker does not, so a sweep would never find one that hangs once its owner is gone."""
    skip_without_bubblewrap()
    with BubblewrapSandbox() as box:
        beside = Path(f"/proc/{box._process.pid}/environ").read_bytes().split(b"\0")
        assert f"{MARK_VARIABLE}={box.folder.name}".encode() in beside


def test_nothing_is_left_after_its_end() -> None:
    skip_without_bubblewrap()
    with BubblewrapSandbox() as box:
        folder = box.folder
        box.python("import subprocess; subprocess.Popen(['sleep', '600'])")
        assert folder.exists()
    assert not folder.exists()
    assert list(Path("/sys/fs/cgroup").rglob(folder.name)) == []
