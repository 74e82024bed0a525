"""A Docker engine of a test's own, which it may kill."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

# gVisor on machines without KVM, and where Docker's own network setup is not to be had.
RUNSC = ["--platform=ptrace", "--network=none"]
FLAGS = ["--iptables=false", "--ip6tables=false", "--ip-masq=false", "--bridge=none"]
START_S = 60.0


class OwnEngine:
    """A second dockerd with its own data, runtime folder and socket; it knows gVisor's `runsc`.

    Attributes:
        address: What `DOCKER_HOST` says for it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.address = f"unix://{folder}/docker.sock"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and wait until it answers; what it needs to start after a kill is seen to."""
        for name in ("docker.pid", "exec/containerd/containerd.pid"):
            (self.folder / name).unlink(missing_ok=True)
        command = ["dockerd", f"--data-root={self.folder}/data", f"--exec-root={self.folder}/exec"]
        command += [f"--pidfile={self.folder}/docker.pid", f"--host={self.address}", *FLAGS]
        runsc = {"path": shutil.which("runsc") or "runsc", "runtimeArgs": RUNSC}
        settings = self.folder / "daemon.json"
        settings.write_text(json.dumps({"runtimes": {"runsc": runsc}}))
        command += [f"--config-file={settings}"]
        with open(self.folder / "log", "ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
            )
        deadline = time.monotonic() + START_S
        while self.docker("version").returncode != 0:
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError((self.folder / "log").read_text()[-600:])
            time.sleep(0.05)

    def stop(self, number: signal.Signals) -> None:
        """End it with a signal, and wait until it and its containerd have gone."""
        assert self._process is not None
        self._process.send_signal(number)
        self._process.wait()
        containerd = self.folder / "exec/containerd/containerd.pid"
        with contextlib.suppress(OSError, ValueError):
            pid = int(containerd.read_text())
            while Path(f"/proc/{pid}/cmdline").read_bytes():
                time.sleep(0.01)

    def docker(self, *arguments: str, stdin: bytes = b"") -> "subprocess.CompletedProcess[bytes]":
        """Run a command of the docker client's on it."""
        return subprocess.run(
            ["docker", "--host", self.address, *arguments], input=stdin, capture_output=True
        )

    def remove(self) -> None:
        """Kill it and all that is left of it."""
        if self._process is not None and self._process.poll() is None:
            self.stop(signal.SIGKILL)
        beginning = str(self.folder).encode()
        for entry in Path("/proc").iterdir():  # shims live on without their engine
            with contextlib.suppress(OSError):
                if entry.name.isdigit() and beginning in (entry / "cmdline").read_bytes():
                    os.kill(int(entry.name), signal.SIGKILL)
        mounts = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
        for mount in sorted(mounts, reverse=True):
            if mount.startswith(f"{self.folder}/"):
                subprocess.run(["umount", "--lazy", mount], capture_output=True)
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture(scope="module")
def own_engine(docker_image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnEngine]:
    """An engine with the image, beside the one that other tests use; skips where none can run."""
    if shutil.which("dockerd") is None or os.geteuid() != 0:
        pytest.skip("a second engine needs dockerd and root")
    image = subprocess.run(["docker", "save", docker_image], capture_output=True, check=True)
    engine = OwnEngine(tmp_path_factory.mktemp("engine"))
    try:
        try:
            engine.start()
        except RuntimeError as error:
            pytest.skip(f"a second engine does not start here: {error}")
        loaded = engine.docker("load", stdin=image.stdout)
        assert loaded.returncode == 0, loaded.stderr
        del image
        yield engine
    finally:
        engine.remove()
