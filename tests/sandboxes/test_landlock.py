"""What a Landlock box adds to the contract: refusals with reasons, and nothing left behind."""

import ctypes
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import gymnast.sandboxes.landlock as landlock
import gymnast.sandboxes.landlock_plan as landlock_plan
from attack_fixtures import processes_with
from gymnast.errors import SandboxUnavailable
from gymnast.sandboxes import LandlockSandbox, SandboxSpec, open_sandbox
from gymnast.sandboxes.owner import MARK_VARIABLE
from gymnast.sandboxes.sweep import sweep
from sandbox_fixtures import skip_without_landlock


@pytest.fixture
def asked_anew() -> Any:
    """The answer of the probe is kept for a process; not beyond this test."""
    for answer in (landlock._why_not, landlock._why_no_namespaces):
        answer.cache_clear()
    yield
    for answer in (landlock._why_not, landlock._why_no_namespaces):
        answer.cache_clear()


class Kernel:
    """Answers as one that has a given version of Landlock; below 0: none."""

    def __init__(self, abi: int) -> None:
        self.abi = abi

    def syscall(self, *arguments: Any) -> int:
        return self.abi


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("machine", lambda: "s390x", "this is linux on s390x; it takes Linux on x86-64"),
        ("CDLL", lambda *_, **__: Kernel(-1), "has no Landlock, it is off"),
        ("CDLL", lambda *_, **__: Kernel(4), "has Landlock ABI 4; it takes 6"),
        ("_try", lambda **_: "a process in a box could read /x", "could read /x"),
    ],
)
@pytest.mark.skipif(sys.platform != "linux", reason="Landlock is Linux's")
def test_what_is_missing_is_named(
    name: str,
    value: Callable[..., Any],
    reason: str,
    asked_anew: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if name == "_try":
        skip_without_landlock()
        landlock._why_not.cache_clear()
        landlock._why_no_namespaces.cache_clear()
    owners = {"machine": platform, "CDLL": ctypes}
    monkeypatch.setattr(owners.get(name, landlock), name, value)
    with pytest.raises(SandboxUnavailable, match=reason + ".*Another backend"):
        open_sandbox("landlock")


def test_the_probe_sees_what_is_open(asked_anew: None, monkeypatch: pytest.MonkeyPatch) -> None:
    skip_without_landlock()
    monkeypatch.setattr(landlock_plan, "_READABLE", (*landlock_plan._READABLE, "/etc/passwd"))
    assert landlock._try(namespaces=True) == "a process in a box could read /etc/passwd"


def test_root_is_given_up() -> None:
    skip_without_landlock()
    with LandlockSandbox() as box:
        user_id = int(box.python("import os; os.getuid()").stdout)
        if os.geteuid() == 0:
            assert user_id not in (0, os.getuid())
            with LandlockSandbox() as other:
                assert int(other.python("import os; os.getuid()").stdout) != user_id
        else:
            assert user_id == os.getuid()


def processes_of(box_folder: Path) -> list[int]:
    """Of the launcher and the worker, by their mark; the worker's own cannot be asked for it."""
    mark, found = f"{MARK_VARIABLE}={box_folder.name}".encode(), []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if mark in (entry / "environ").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:
            continue
    return sorted(found)


def wait_until(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_nothing_is_left_after_its_owner_is_killed(mark: str) -> None:
    skip_without_landlock()
    program = (
        "import os, signal\nfrom gymnast.sandboxes import LandlockSandbox\n"
        "box = LandlockSandbox()\nbox.python('import subprocess; "
        f'subprocess.Popen(["python3", "-c", "import time; time.sleep(600)", "{mark}"])\')\n'
        "print(box.folder, flush=True)\nos.kill(os.getpid(), signal.SIGKILL)\n"
    )
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout
    folder = Path(shown.strip())
    wait_until(lambda: not processes_with(mark) and not processes_of(folder))
    for path in ("root", "work", "tmp"):  # in memory, with namespaces
        assert not os.listdir(folder / path)
    sweep(containers=False)
    assert not folder.exists()
    assert not groups_of(folder.name)


def groups_of(name: str) -> list[str]:
    return [path for path, names, _ in os.walk("/sys/fs/cgroup") for one in names if one == name]


def test_a_launcher_that_is_killed_takes_its_box_along(mark: str) -> None:
    skip_without_landlock()
    with LandlockSandbox() as box:
        box.python(f"import subprocess; subprocess.Popen(['sh', '-c', 'sleep 600; : {mark}'])")
        assert processes_with(mark)
        launcher, *_ = processes_of(box.folder)
        os.kill(launcher, signal.SIGKILL)
        wait_until(lambda: not box.ping(timeout_s=1))
    assert not processes_with(mark)
    assert processes_of(box.folder) == []
    assert not box.folder.exists()


def test_a_share_of_a_core() -> None:
    skip_without_landlock()
    with LandlockSandbox(SandboxSpec(cpus=0.3)) as box:
        ratio = """
import time
wall, cpu = time.monotonic(), time.process_time()
while time.process_time() - cpu < 0.3: pass
(time.process_time() - cpu) / (time.monotonic() - wall) < 0.6
"""
        assert box.python(ratio).stdout == "True\n"
