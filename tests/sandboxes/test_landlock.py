"""What a Landlock box adds to the contract: refusals with reasons, and nothing left behind."""

import ctypes
import importlib.util
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
from gymnast.errors import SandboxUnavailable
from gymnast.sandboxes import LandlockSandbox, SandboxSpec, open_sandbox
from gymnast.sandboxes.users import processes_of_user
from sandbox_fixtures import skip_without_landlock


@pytest.fixture
def asked_anew() -> Any:
    """The answer of the probe is kept for a process; not beyond this test."""
    landlock._why_not.cache_clear()
    yield
    landlock._why_not.cache_clear()


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
        ("find_spec", lambda name: None, r"sandlock is missing: pip install 'gymnast\[landlock\]'"),
        ("CDLL", lambda *_, **__: Kernel(-1), "has no Landlock, it is off"),
        ("CDLL", lambda *_, **__: Kernel(4), "has Landlock ABI 4; it takes 6"),
        ("_try", lambda: "a process in a box could read /x", "could read /x"),
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
    owners = {"machine": platform, "find_spec": importlib.util, "CDLL": ctypes}
    monkeypatch.setattr(owners.get(name, landlock), name, value)
    with pytest.raises(SandboxUnavailable, match=reason + ".*Another backend"):
        open_sandbox("landlock")


def test_the_probe_sees_what_is_open(asked_anew: None, monkeypatch: pytest.MonkeyPatch) -> None:
    skip_without_landlock()
    monkeypatch.setattr(landlock, "_READABLE", (*landlock._READABLE, "/etc/passwd"))
    assert landlock._try() == "a process in a box could read /etc/passwd"


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


def test_nothing_is_left_after_its_owner_is_killed() -> None:
    skip_without_landlock()
    program = (
        "import os, signal\nfrom gymnast.sandboxes import LandlockSandbox\n"
        "box = LandlockSandbox()\nbox.python('import subprocess; "
        'subprocess.Popen(["sleep", "600"])\')\n'
        "print(box.python('import os; os.getppid()').stdout, box.folder, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stdout
    worker, folder = shown.split()
    until = time.monotonic() + 20
    while Path(f"/proc/{worker}").exists():
        assert time.monotonic() < until
        time.sleep(0.05)
    for path in ("work", "tmp", ""):
        os.rmdir(Path(folder, path))


def test_a_launcher_that_is_killed_takes_its_box_along() -> None:
    skip_without_landlock()
    box = LandlockSandbox()
    try:
        user_id = int(box.python("import os; os.getuid()").stdout)
        worker = int(box.python("import os; os.getppid()").stdout)
        launcher = int(Path(f"/proc/{worker}/stat").read_text().rsplit(")", 1)[1].split()[1])
        os.kill(launcher, signal.SIGKILL)
        until = time.monotonic() + 10
        while box.ping(timeout_s=1):
            assert time.monotonic() < until
            time.sleep(0.02)
    finally:
        box.close()
    if user_id != os.getuid():
        assert processes_of_user(user_id) == []
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
