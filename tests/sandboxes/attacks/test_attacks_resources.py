"""Attacks that use things up: processes, memory, disk, output, descriptors, time."""

import errno
import os
import time

import pytest

from attack_fixtures import (
    LIMITS,
    MIB,
    on_every_isolating_backend,
    run_python,
    tries,
)
from gymnast.errors import SandboxFileError
from gymnast.sandboxes.host.bubblewrap import BubblewrapSandbox
from gymnast.sandboxes.host.landlock import LandlockSandbox
from gymnast.sandboxes.worker.sandbox import WorkerSandbox
from sandbox_fixtures import OpenBox

pytestmark = on_every_isolating_backend

FORK_BOMB = """
import os
while True:
    try:
        os.fork()
    except OSError:
        pass
"""


def test_fork_bomb(victim: WorkerSandbox, mark: str) -> None:
    """Fork bomb"""
    ended = run_python(victim, FORK_BOMB, mark, timeout_s=2)
    assert ended.verdict != "ok"
    victim.exec("true") if victim.alive else None


def test_fork_bomb_in_the_session(victim: WorkerSandbox) -> None:
    """Fork bomb in the Python session"""
    assert victim.python(FORK_BOMB, timeout_s=2).verdict != "ok"


def test_processes_are_limited(victim: WorkerSandbox) -> None:
    """More processes than allowed"""
    code = """
import subprocess
held = []
try:
    for _ in range(200): held.append(subprocess.Popen(["sleep", "30"]))
except OSError:
    pass
print(len([process for process in held if process.poll() is None]))
"""
    ended = run_python(victim, code)
    alive = int(ended.stdout) if ended.stdout else 0
    assert alive <= LIMITS["processes"]


def test_thread_bomb(victim: WorkerSandbox) -> None:
    """Thread bomb"""
    code = """
import threading, time
threading.stack_size(32768)
count = 0
try:
    while count < 5000:
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
        count += 1
except RuntimeError:
    pass
print(count, flush=True)
import os
os._exit(0)
"""
    ended = run_python(victim, code)
    assert int(ended.stdout or 0) < 200, ended


def test_memory_bomb(victim: WorkerSandbox, mark: str) -> None:
    """Memory bomb, one process"""
    ended = run_python(victim, "held = bytearray(1 << 30); print(len(held))", mark)
    assert ended.verdict in ("oom", "nonzero")
    assert ended.stdout == ""


def test_memory_bomb_of_many(victim: WorkerSandbox, mark: str) -> None:
    """Memory bomb, many processes"""
    by_kernel = LandlockSandbox | BubblewrapSandbox
    if isinstance(victim, by_kernel) and "memory" not in victim.controllers:
        pytest.skip("without control groups memory is limited for each process")
    code = """
import os, time
for _ in range(16):
    if not os.fork():
        held = bytearray(48 << 20)
        print("held", flush=True)
        time.sleep(1)
        os._exit(0)
raise SystemExit(any(os.wait()[1] for _ in range(16)))
"""
    ended = run_python(victim, code, mark)
    assert ended.stdout.count("held") * 48 * MIB <= LIMITS["memory_bytes"] + 32 * MIB
    assert ended.verdict != "ok"


def test_memory_bomb_that_hides_behind_the_worker(victim: WorkerSandbox, open_box: OpenBox) -> None:
    """Memory bomb of many small processes that ask to be killed after the worker (oom_score_adj)"""
    by_kernel = LandlockSandbox | BubblewrapSandbox
    if isinstance(victim, by_kernel) and "memory" not in victim.controllers:
        pytest.skip("without control groups memory is limited for each process")
    code = """
import os, time
for value in range(-1000, 1000, 50):
    try:
        with open("/proc/self/oom_score_adj", "w") as file: file.write(str(value))
        break
    except OSError:
        pass
try:
    while True:
        if not os.fork():
            held = bytearray(3 << 20)
            time.sleep(20)
            os._exit(0)
except OSError:
    pass
raise SystemExit(any(os.wait()[1] for _ in range(20)))
"""
    box = open_box(memory_bytes=64 * MIB, processes=100, timeout_s=10)
    assert run_python(box, code).verdict == "oom"
    assert box.python("'the worker lives'").stdout == "'the worker lives'\n"


def test_terminals(victim: WorkerSandbox) -> None:
    """Taking all pseudo-terminals (PTYs) of the machine"""
    places = ("/dev/ptmx", "/dev/pts/ptmx", "/dev/tty")
    attempts = {place: f"__import__('os').open({place!r}, 2)" for place in places}
    outcome = tries(victim, {**attempts, "openpty": "__import__('os').openpty()"})
    assert all("Error" in found for found in outcome.values()), outcome


TAKE_ALL = """
import ctypes, fcntl, os
_libc, _id = ctypes.CDLL(None), ctypes.c_void_p()
timers, pipes = 0, []
while timers < 200_000 and _libc.timer_create(1, None, ctypes.byref(_id)) == 0:
    timers += 1
try:
    while True:
        pipes.extend(os.pipe())
        fcntl.fcntl(pipes[-1], fcntl.F_SETPIPE_SZ, 1 << 20)
except OSError:
    pass
while len(pipes) < 800 and fcntl.fcntl(pipes[-1], fcntl.F_GETPIPE_SZ) >= 1 << 16:
    pipes.extend(os.pipe())
"""
TAKE_UNDER_WAY = """
import socket
kept = []
try:
    while True:
        kept.append(socket.socketpair())
        socket.send_fds(kept[-1][0], [b"x"], [0] * 200)
except OSError as error:
    print(error.errno)
"""
SHARE_LEFT = """
import ctypes, fcntl, os
_read, _write = os.pipe()
print(fcntl.fcntl(_write, fcntl.F_GETPIPE_SZ) >> 10)
print(ctypes.CDLL(None).timer_create(1, None, ctypes.byref(ctypes.c_void_p())))
"""


def test_what_is_counted_by_user(victim: WorkerSandbox, open_box: OpenBox, backend: str) -> None:
    """What the kernel counts by user, until another box has none: timers, pipes, descriptors"""
    other = open_box(**LIMITS)
    assert other.python(SHARE_LEFT).stdout == "64\n0\n"
    assert victim.python(TAKE_ALL).verdict == "ok"
    assert int(victim.python("timers").stdout) <= 1024
    assert victim.python(SHARE_LEFT).stdout != "64\n0\n"  # it has used up its own
    pipe, timer = other.python(SHARE_LEFT).stdout.split()
    assert timer == "0"
    assert victim.python(TAKE_UNDER_WAY).stdout == f"{errno.ETOOMANYREFS}\n"
    send = "import socket; a, b = socket.socketpair(); socket.send_fds(a, [b'x'], [0])"
    if backend == "docker" or os.geteuid() == 0:  # else they are the run's user
        assert pipe == "64"
        assert other.python(send).stdout == "1\n"


def test_shared_memory_bomb(victim: WorkerSandbox) -> None:
    """Memory bomb in anonymous files (memfd)"""
    code = """
import os
held = 0
for _ in range(64):
    fd = os.memfd_create("bomb")
    for _ in range(16):
        held += os.write(fd, bytes(1 << 20))
    print(held, flush=True)
"""
    ended = run_python(victim, code)
    last = int(ended.stdout.split()[-1]) if ended.stdout else 0
    assert last <= LIMITS["memory_bytes"]


@pytest.mark.parametrize("folder", [".", "/tmp", "/dev/shm"])
def test_disk_bomb(victim: WorkerSandbox, folder: str) -> None:
    """File system bomb: many large files"""
    code = f"""
import os
for number in range(32):
    with open(f"{folder}/fill{{number}}", "wb", 0) as file:
        for _ in range(4):
            file.write(bytes(1 << 20))
"""
    ended = run_python(victim, code)
    assert ended.verdict == "nonzero"
    shown = victim.exec(f"cat {folder}/fill* | wc -c; rm -f {folder}/fill*").stdout
    assert int(shown) <= 2 * LIMITS["disk_bytes"]


def test_inode_bomb(victim: WorkerSandbox) -> None:
    """File system bomb: endlessly many empty files"""
    code = "for n in range(200_000): open(f'/tmp/{n}', 'w').close()"
    ended = run_python(victim, code, timeout_s=15)
    assert ended.verdict in ("nonzero", "timeout", "oom")


FILL = """
import itertools, os
for folder in (".", "/tmp", "/dev/shm"):
    size = os.statvfs(folder).f_blocks * os.statvfs(folder).f_frsize
    for number in itertools.count():
        try:
            fd = os.open(folder + "/" + str(number).rjust(250, "x"), os.O_CREAT | os.O_WRONLY)
        except OSError:
            break  # no inode is left
        try:
            os.pwrite(fd, b"x", size - 4096)  # far from all else of its file
        except OSError:
            pass
        os.close(fd)
"""
ALLOCATE = "import os; os.fork(); held = []\nwhile True: held.append(bytearray(1 << 20))"


@pytest.mark.parametrize("memory_mib", [32, 128])
def test_files_to_the_brim(open_box: OpenBox, memory_mib: int) -> None:
    """Files in every folder to the brim, then all memory"""
    box = open_box(memory_bytes=memory_mib * MIB)
    box.write_file("kept.txt", "kept")
    run_python(box, FILL)
    for _ in range(2):
        assert run_python(box, ALLOCATE).verdict in ("oom", "nonzero")
        assert box.python(ALLOCATE).verdict in ("oom", "nonzero")
    assert box.exec("yes | head -c 20000000; yes | head -c 20000000 >&2").verdict == "output_limit"
    assert box.read_file("kept.txt") == b"kept"
    with pytest.raises(SandboxFileError):
        box.write_file("/tmp/more.txt", bytes(32 * MIB))
    assert box.python("6 * 7").stdout == "42\n"
    assert box.exec("find . /tmp /dev/shm -type f -delete; echo gone").stdout == "gone\n"
    box.write_file("more.txt", "more")


def test_memory_that_is_in_no_process(open_box: OpenBox) -> None:
    """Memory in files without a name and in pipes, held by many processes that are small"""
    hoards = {
        "files": "fd = os.memfd_create('x')\n    for _ in range(8): os.write(fd, bytes(1 << 20))",
        "pipes": "os.set_blocking(os.pipe()[1], False)\n"
        "    for fd in range(1024):\n"
        "        try: os.write(fd, bytes(1 << 16))\n"
        "        except OSError: pass",
    }
    with open_box(memory_bytes=64 * MIB) as box:
        for hoard in hoards.values():
            # No more of them, or the box runs out of CPU time before it runs out of memory.
            code = f"import os\nfor _ in range(4): os.fork()\nwhile True:\n    {hoard}"
            assert box.python(code, timeout_s=10).verdict != "dead"
            box.python("raise SystemExit")  # and what has lived on below the session
            assert box.python("6 * 7").stdout == "42\n"


def test_access_control_lists(victim: WorkerSandbox) -> None:
    """Access control lists of files, whose memory no box is charged for"""
    code = """
import os, struct
entries = [(1, 7, -1), *((2, 7, os.getuid()) for _ in range(8000))]
entries += [(4, 7, -1), (16, 7, -1), (32, 7, -1)]
listed = struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries)
def attempt(name):
    try:
        os.setxattr(".", name, listed)
    except OSError as error:
        return error.strerror
[attempt("system.posix_acl_access"), attempt("system.posix_acl_default")]
"""
    refused = ["Operation not supported"] * 2
    if isinstance(victim, LandlockSandbox) and not victim.namespaces and os.geteuid() != 0:
        refused = ["Operation not permitted"] * 2
    assert victim.python(code).stdout == f"{refused}\n"
    assert victim.exec("echo x > a && cp -p a b && cat b").stdout == "x\n"


def test_endless_output(victim: WorkerSandbox, mark: str) -> None:
    """Endless output"""
    ended = victim.exec(["yes", mark], max_output_bytes=1000)
    assert ended.verdict == "output_limit"
    assert len(ended.stdout) < 1200


def test_endless_output_of_the_session(victim: WorkerSandbox) -> None:
    """Endless output of the Python session"""
    ended = victim.python("while True: print('x' * 9999)", max_output_bytes=1000)
    assert ended.verdict == "output_limit"
    assert len(ended.stdout) < 1200


def test_a_line_of_a_gigabyte(victim: WorkerSandbox) -> None:
    """A line of 1 GB"""
    ended = victim.exec("head -c 1000000000 /dev/zero | tr '\\0' x")
    assert ended.verdict == "output_limit"
    assert len(ended.stdout) < 1.1 * MIB


def test_output_that_is_no_text(victim: WorkerSandbox) -> None:
    """Output that is not UTF-8"""
    ended = victim.exec(r"printf 'a\377\300\200\355\240\200b' | tee /dev/stderr")
    assert ended.verdict == "ok"
    assert ended.stdout.startswith("a\ufffd") and ended.stdout.endswith("b")
    assert ended.stdout == ended.stderr


def test_descriptors(victim: WorkerSandbox) -> None:
    """Filling all descriptors"""
    code = """
import os, socket
held = []
try:
    while len(held) < 100_000: held.extend(socket.socketpair())
except OSError:
    pass
print(len(held))
"""
    ended = victim.python(code)
    assert ended.stdout and int(ended.stdout) <= 1024
    assert victim.python("held.clear(); len(os.listdir('/proc/self/fd')) < 20").stdout == "True\n"


def test_sleeping_past_the_limit(victim: WorkerSandbox, mark: str) -> None:
    """Sleeping past the time limit"""
    begun = time.monotonic()
    assert run_python(victim, "import time; time.sleep(999)", mark, timeout_s=0.5).verdict == (
        "timeout"
    )
    assert victim.python("import time; time.sleep(999)", timeout_s=0.5).verdict == "timeout"
    assert time.monotonic() - begun < 15


def test_spinning_past_the_limit(victim: WorkerSandbox, mark: str) -> None:
    """Spinning past the time limit, all signals blocked"""
    code = """
import signal, threading
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
def spin():
    while True: pass
for _ in range(4): threading.Thread(target=spin).start()
"""
    assert run_python(victim, code, mark, timeout_s=1).verdict == "timeout"


def test_more_cpus_than_allowed(victim: WorkerSandbox) -> None:
    """More CPUs than allowed"""
    code = """
import os, time
try: os.sched_setaffinity(0, range(os.cpu_count()))
except OSError: pass
begun = time.monotonic()
children = []
for _ in range(4):
    pid = os.fork()
    if not pid:
        while time.monotonic() - begun < 1.5: pass
        os._exit(0)
    children.append(pid)
for pid in children: os.waitpid(pid, 0)
used = os.times()
print((used.children_user + used.children_system) / (time.monotonic() - begun))
"""
    assert float(run_python(victim, code).stdout) < 1.5 * victim.spec.cpus
