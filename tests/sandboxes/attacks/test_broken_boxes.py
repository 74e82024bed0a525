"""200 boxes broken from inside and from outside, in random ways: nothing of them is left."""

import contextlib
import gc
import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gymnast.errors import SandboxDead, SandboxFileError
from gymnast.sandboxes import DockerSandbox
from gymnast.sandboxes.docker.engine import ENGINE_ERRORS, engine_client
from gymnast.sandboxes.lifetime.owner import folder_prefix
from gymnast.sandboxes.worker.sandbox import WorkerSandbox
from pool_fixtures import eventually
from sandbox_fixtures import OpenBox

pytestmark = [
    pytest.mark.slow,
    pytest.mark.parametrize(
        "backend",
        ["landlock", "bubblewrap", pytest.param("docker", marks=pytest.mark.docker)],
        indirect=True,
        scope="module",
    ),
]

BOXES = 200
AT_ONCE = 8
HANG_S = 540.0
LATER = "import os, threading\nthreading.Timer({seconds}, lambda: exec({code!r})).start()"
FROM_INSIDE = {
    "memory": "held = []\nwhile True: held.append(bytearray(1 << 20))",
    "memory of many": "import os\nfor _ in range(4): os.fork()\nheld = bytearray(64 << 20)",
    "memory that no process maps": "import os\nwhile True:\n"
    "    fd = os.memfd_create('x')\n    for _ in range(4): os.write(fd, bytes(1 << 20))",
    "forks": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
    "threads": "import threading, time\n"
    "while True: threading.Thread(target=time.sleep, args=(60,)).start()",
    "files": "import os\nfor folder in ('.', '/tmp', '/dev/shm'):\n    try:\n"
    "        with open(folder + '/fill', 'wb', 0) as file:\n"
    "            while True: file.write(bytes(1 << 20))\n    except OSError: pass",
    "folders": "import os\nwhile True:\n    os.mkdir('deeper')\n    os.chdir('deeper')",
    "the session killed": "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)",
    "all killed": "import os, signal\nos.kill(-1, signal.SIGKILL)",
    "all stopped": "import os, signal\nos.kill(-1, signal.SIGSTOP)",
    "descriptors closed": "import os\nos.closerange(0, 1024)",
    "garbage in every descriptor": "import os\nwhile True:\n    for fd in range(1024):\n"
    "        try: os.write(fd, os.urandom(4096))\n        except OSError: pass",
    "daemons": "import os, signal, time\nfor _ in range(8):\n    if not os.fork():\n"
    "        os.setsid()\n        signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\n"
    "        while True: time.sleep(1)",
}
Harm = Callable[[random.Random, WorkerSandbox], str]


def from_inside(chance: random.Random, box: WorkerSandbox) -> str:
    """Run one of them in the session or beside it, at once or a moment later."""
    name = chance.choice(list(FROM_INSIDE))
    how = chance.choice(["session", "process", "later"])
    code = FROM_INSIDE[name]
    if how == "process":
        box.exec(["python3", "-c", code], timeout_s=1)
    else:
        later = LATER.format(seconds=chance.uniform(0, 0.3), code=code)
        box.python(later if how == "later" else code, timeout_s=1)
    return f"{name} ({how})"


def from_outside(chance: random.Random, box: WorkerSandbox) -> str:
    """Kill or stop something of it, amid a call or between two."""

    def spin() -> None:
        with contextlib.suppress(SandboxDead):
            box.python("while True: pass", timeout_s=1)

    calls = [threading.Thread(target=spin)] if chance.random() < 0.5 else []
    for call in calls:
        call.start()
    name = harm_container(chance, box) if isinstance(box, DockerSandbox) else harm(chance, box)
    for call in calls:
        call.join()
    return name


def harm_container(chance: random.Random, box: DockerSandbox) -> str:
    api = engine_client()
    harms = {
        "docker kill": api.kill,
        "docker pause": api.pause,
        "docker stop": lambda container: api.stop(container, timeout=0),
        "docker rm": lambda container: api.remove_container(container, force=True),
    }
    name = chance.choice(list(harms))
    with contextlib.suppress(*ENGINE_ERRORS):  # it is gone
        harms[name](box.container_id)
    return name


def harm(chance: random.Random, box: WorkerSandbox) -> str:
    number = chance.choice([signal.SIGKILL, signal.SIGSTOP, signal.SIGTERM])
    if found := processes_of(str(box.folder.name)):  # type: ignore[attr-defined]
        with contextlib.suppress(ProcessLookupError):
            os.kill(chance.choice(found), number)
    return str(number.name)


def processes_of(mark: str) -> list[int]:
    """The host's ids of what has a text in its environment: a box's processes have its mark."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and mark.encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
    return found


def left(backend: str) -> set[str]:
    """What is on this machine of boxes that this process has opened."""
    gc.collect()  # connections of the engine's client among it
    mark = folder_prefix()
    groups = [Path(path, name) for path, names, _ in os.walk("/sys/fs/cgroup") for name in names]
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    found = {f"process {number}" for number in processes_of(mark)}
    found |= {f"group {group}" for group in groups if group.name.startswith(mark)}
    found |= {line for line in mounts if mark in line}
    found |= {f"thread {thread.name}" for thread in threading.enumerate()}
    if backend == "docker":
        mine = {"label": f"gymnast.owner.pid={os.getpid()}"}
        containers = engine_client().containers(all=True, filters=mine)
        found |= {f"container {container['Id']}" for container in containers}
        engine_client().close()  # idle connections are no leak
    return found | {f"descriptor {number}" for number in range(len(os.listdir("/proc/self/fd")))}


@pytest.fixture
def nothing_left(
    backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, open_box: OpenBox
) -> Iterator[None]:
    for name in ("worker_sandbox.GRACE_S", "worker_sandbox.FILE_S"):
        monkeypatch.setattr(f"gymnast.sandboxes.{name}", 2.0)
    open_box().close()  # what is started once in a process
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    before = left(backend)
    yield
    assert eventually(lambda: not left(backend) - before), left(backend) - before
    assert list((tmp_path / "temporary").iterdir()) == []


@pytest.mark.usefixtures("nothing_left")
def test_200_boxes_broken_from_inside_and_from_outside(open_box: OpenBox) -> None:
    """Each call ends, and every box says "well" or "dead"; a dead one stays dead."""
    ways: Counter[str] = Counter()

    def break_one(seed: int) -> bool:
        chance = random.Random(seed)
        with open_box(memory_bytes=96 << 20, processes=16, timeout_s=2.0) as box:
            for _ in range(chance.randint(1, 3)):
                try:
                    ways[chance.choice([from_inside, from_outside])(chance, box)] += 1
                    box.exec("true")
                    box.read_file("/etc/hostname")
                except (SandboxDead, SandboxFileError):
                    pass
            alive = box.ping()
            if alive:
                assert box.python("6 * 7").stdout in ("42\n", "")
            else:
                with pytest.raises(SandboxDead):
                    box.exec("true")
            return alive

    with ThreadPoolExecutor(AT_ONCE) as threads:
        alive = list(threads.map(break_one, range(BOXES), timeout=HANG_S))
    print(
        f"{sum(alive)} of {BOXES} boxes were alive at the end, after {ways.total()} harms: {ways}"
    )
    assert 0 < sum(alive) < BOXES
