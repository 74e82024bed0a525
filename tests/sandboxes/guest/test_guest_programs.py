"""What programs do in a box goes on working: Python, a shell, a compiler, git, numpy, pytest.

Each program says on its last line that it got to its end. What an image or a machine does not have
is skipped by name.
"""

import importlib.util
import os
import re
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import numpy  # noqa: F401  (loaded, so that its libraries are)
import pytest

from attack_fixtures import on_every_isolating_backend
from gymnast.sandboxes.host.landlock import LandlockSandbox
from gymnast.sandboxes.worker.sandbox import WorkerSandbox
from sandbox_fixtures import OpenBox, python_that_everyone_may_use, without_namespaces

MIB = 1 << 20

# Needs /dev/shm, or local sockets that have a name.
SHARED = {
    "multiprocessing": """
import multiprocessing, os, sys
from multiprocessing import shared_memory

def double(number):
    return 2 * number

def work(queue, lock, value, name):
    memory = shared_memory.SharedMemory(name)
    with lock:
        value.value += 1
        memory.buf[0] += 1
    queue.put(os.getpid())
    memory.close()

if __name__ == "__main__":
    for method in ("fork", "spawn", "forkserver"):
        context = multiprocessing.get_context(method)
        with context.Pool(2) as pool:
            assert pool.map(double, range(9)) == [2 * n for n in range(9)]
        memory = shared_memory.SharedMemory(create=True, size=64)
        queue, lock, value = context.Queue(), context.Lock(), context.Value("i", 0)
        arguments = (queue, lock, value, memory.name)
        started = [context.Process(target=work, args=arguments) for _ in range(2)]
        for process in started: process.start()
        assert {queue.get() for _ in started} == {process.pid for process in started}
        for process in started: process.join()
        assert (value.value, memory.buf[0]) == (2, 2)
        memory.close(); memory.unlink()
    with multiprocessing.Manager() as manager:
        assert manager.dict(a=1)["a"] == 1
    ours, theirs = context.Pipe()
    ours.send({"a": [1]})
    assert theirs.recv() == {"a": [1]}
""",
    "executors": """
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

if __name__ == "__main__":
    for kind in (ProcessPoolExecutor, ThreadPoolExecutor):
        with kind(2) as pool:
            assert list(pool.map(abs, range(-3, 0))) == [3, 2, 1]
""",
    "local sockets": """
import asyncio, os, socket, threading

async def answer(reader, writer):
    writer.write((await reader.readline()).upper())
    writer.close()

async def main():
    server = await asyncio.start_unix_server(answer, "socket")
    reader, writer = await asyncio.open_unix_connection("socket")
    writer.write(b"abc\\n")
    assert await reader.read() == b"ABC\\n"
    writer.close()
    server.close()

asyncio.run(main())
ours, theirs = socket.socketpair()
socket.send_fds(ours, [b"x"], [0])
assert socket.recv_fds(theirs, 1, 1)[0] == b"x"
""",
}

PROGRAMS = {
    "threads": """
import queue, threading, time

lock, ready, numbers = threading.Lock(), threading.Event(), queue.Queue()
def work():
    ready.wait(5)
    with lock: numbers.put(threading.get_native_id())
threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads: thread.start()
ready.set()
for thread in threads: thread.join()
assert len({numbers.get() for _ in threads}) == 8
condition = threading.Condition()
with condition: assert not condition.wait(0.01)
time.sleep(0.01)
""",
    "subprocess": """
import os, signal, subprocess, sys

assert subprocess.run(["sort"], input=b"b\\na\\n", stdout=subprocess.PIPE).stdout == b"a\\nb\\n"
first = subprocess.Popen(["echo", "a b"], stdout=subprocess.PIPE)
second = subprocess.Popen(["wc", "-w"], stdin=first.stdout, stdout=subprocess.PIPE)
assert second.communicate()[0].strip() == b"2" and first.wait() == 0
try:
    subprocess.run(["sleep", "9"], timeout=0.05)
    raise SystemExit("not timed out")
except subprocess.TimeoutExpired:
    pass
child = subprocess.Popen(["sleep", "9"], start_new_session=True, preexec_fn=lambda: os.nice(1))
os.killpg(child.pid, signal.SIGTERM)
assert child.wait() == -signal.SIGTERM
assert os.WEXITSTATUS(os.waitpid(os.posix_spawn("/bin/sh", ["sh", "-c", "exit 3"], {}), 0)[1]) == 3
assert os.system("exit 4") >> 8 == 4 and os.popen("echo a").read() == "a\\n"
pid = os.fork()
if not pid: os._exit(5)
assert os.waitpid(pid, 0)[1] >> 8 == 5
""",
    "asyncio": """
import asyncio, os, signal, sys

async def main():
    loop = asyncio.get_running_loop()
    assert await loop.run_in_executor(None, sum, [1, 2]) == 3
    child = await asyncio.create_subprocess_exec("cat", stdin=-1, stdout=-1)
    assert (await child.communicate(b"abc"))[0] == b"abc"
    signalled = asyncio.Event()
    loop.add_signal_handler(signal.SIGUSR1, signalled.set)
    os.kill(os.getpid(), signal.SIGUSR1)
    await asyncio.wait_for(signalled.wait(), 5)
    assert await asyncio.gather(*(asyncio.sleep(0.01, n) for n in range(3))) == [0, 1, 2]

asyncio.run(main())
""",
    "sqlite3": """
import sqlite3

for mode in ("wal", "delete"):
    database = sqlite3.connect("data-%s.db" % mode)
    assert database.execute("pragma journal_mode=" + mode).fetchone() == (mode,)
    with database: database.execute("create table numbers (n integer)")
    with database: database.executemany("insert into numbers values (?)", [(n,) for n in range(9)])
    other = sqlite3.connect("data-%s.db" % mode)
    assert other.execute("select sum(n) from numbers").fetchone() == (36,)
    database.execute("vacuum")
""",
    "files": """
import fcntl, glob, mmap, os, pathlib, shutil, stat, tempfile

with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as nameless:
    nameless.write(b"x" * 9999); nameless.flush(); os.fsync(nameless.fileno())
    path = pathlib.Path(folder, "a"); path.write_bytes(b"abc" * 9999)
    shutil.copy2(path, path.with_name("b")); os.replace(path.with_name("b"), path.with_name("c"))
    path.with_name("d").symlink_to("c"); os.truncate(path, 5); os.utime(path, (1, 1))
    assert sorted(entry.name for entry in os.scandir(folder)) == ["a", "c", "d"]
    assert path.stat().st_size == 5 and path.stat().st_mtime == 1
    assert shutil.disk_usage(folder).total and len(glob.glob(folder + "/*")) == 3
    with open(path, "r+b") as file:
        fcntl.lockf(file, fcntl.LOCK_EX); fcntl.flock(file, fcntl.LOCK_EX)
        with mmap.mmap(file.fileno(), 0) as room:
            room[:2] = b"xy"; room.flush()
        assert file.read() == b"xycab"
    archive = shutil.make_archive("packed", "gztar", folder)
    shutil.unpack_archive(archive, "unpacked")
    assert pathlib.Path("unpacked/c").stat().st_size == 3 * 9999
os.mkfifo("fifo")
os.makedirs("one/two"); shutil.rmtree("one")
""",
    "select and signals": """
import os, select, signal, time

read, write = os.pipe()
epoll, poll = select.epoll(), select.poll()
epoll.register(read, select.EPOLLIN); poll.register(read, select.POLLIN)
assert not epoll.poll(0.01) and not poll.poll(1) and not select.select([read], [], [], 0)[0]
os.write(write, b"x")
assert epoll.poll(1) and poll.poll(1) and select.select([read], [], [], 1)[0]
seen = []
signal.signal(signal.SIGALRM, lambda number, frame: seen.append(number))
signal.setitimer(signal.ITIMER_REAL, 0.01)
signal.pause()
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
os.kill(os.getpid(), signal.SIGUSR1)
assert signal.sigwait([signal.SIGUSR1]) == signal.SIGUSR1 and seen == [signal.SIGALRM]
""",
    "the rest of the library": """
import ctypes, hashlib, platform, random, resource, secrets, ssl, time, uuid

compare = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int), ctypes.POINTER(ctypes.c_int))
numbers = (ctypes.c_int * 3)(3, 1, 2)
ctypes.CDLL(None).qsort(numbers, 3, 4, compare(lambda a, b: a[0] - b[0]))
assert list(numbers) == [1, 2, 3]
ssl.create_default_context()
assert len(secrets.token_bytes(8)) == 8 and uuid.uuid4() != uuid.uuid1()
assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 0 and platform.machine()
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (soft // 2, hard))
assert time.clock_gettime(time.CLOCK_MONOTONIC) and time.get_clock_info("perf_counter").resolution
hashlib.sha256(b"").hexdigest(); random.SystemRandom().random(); time.localtime(); time.tzset()
""",
}


def runs(box: WorkerSandbox, code: str) -> None:
    """Run a program from a file, as `multiprocessing` needs it."""
    box.write_file("program.py", code + '\nif __name__ == "__main__": print("to its end")\n')
    ended = box.exec(["python3", "program.py"], timeout_s=30)
    assert (ended.verdict, ended.stdout) == ("ok", "to its end\n"), ended


def skip_without(box: WorkerSandbox, program: str) -> None:
    if box.exec(["sh", "-c", f"command -v {program}"]).exit_code:
        pytest.skip(f"there is no {program} in this box")


@pytest.mark.parametrize("name", PROGRAMS)
def test_pythons_library(box: WorkerSandbox, name: str) -> None:
    box.exec("rm -rf ./*")
    runs(box, PROGRAMS[name])


@pytest.fixture(scope="module")
def plain() -> Iterator[WorkerSandbox]:
    """A Landlock box as it is where the kernel refuses namespaces."""
    with python_that_everyone_may_use(), without_namespaces() as box:
        yield box


RIGHTS = {"files"}  # what changes the rights of files


@pytest.mark.parametrize("name", PROGRAMS)
def test_pythons_library_without_namespaces(plain: WorkerSandbox, name: str) -> None:
    if os.geteuid() != 0 and name in RIGHTS:
        pytest.skip("a box that is the run's user may not change the rights of files")
    plain.exec("rm -rf ./*")
    runs(plain, PROGRAMS[name])


@pytest.mark.parametrize("name", SHARED)
def test_pythons_library_where_processes_share_something(box: WorkerSandbox, name: str) -> None:
    if isinstance(box, LandlockSandbox) and not box.namespaces:
        pytest.skip("without namespaces there is no /dev/shm, and no socket that has a name")
    box.exec("rm -rf ./*")
    runs(box, SHARED[name])


def test_a_shell(box: WorkerSandbox) -> None:
    script = """
set -e
seq 100 | sed 's/$/ x/' | grep 7 | sort -rn | head -n 1 | { read first rest; echo "$first"; }
cat <<end > text
$((6 * 7)) $(printf '%s' nested "$(echo deeper)")
end
cat text
sleep 30 & kill $!; wait $! || echo "ended: $?"
sleep 0.1 & wait $! && echo waited
(trap 'echo trapped' EXIT; exit 3) || echo "exit code $?"
"""
    ended = box.exec(["sh", "-c", script])
    expected = "97\n42 nesteddeeper\nended: 143\nwaited\ntrapped\nexit code 3\n"
    assert (ended.stdout, ended.exit_code) == (expected, 0), ended
    ended = box.exec("find . -name text -exec chmod 600 {} + && ls -l text && nice true")
    assert ended.verdict == "ok" and "-rw------- " in ended.stdout, ended
    follow = "timeout 2 tail -n 0 -s 0.02 -f log & sleep 0.2; echo more >> log; sleep 0.2; kill $!"
    ended = box.exec(f"touch log; {follow}")  # asks again and again, where nothing notifies it
    assert ended.stdout == "more\n", ended


def test_job_control(box: WorkerSandbox) -> None:
    skip_without(box, "bash")
    script = "set -m; sleep 30 | sleep 31 & jobs %1; kill %1; wait %1; echo $?"
    ended = box.exec(["bash", "-c", script])
    assert "Running" in ended.stdout and ended.stdout.endswith("\n143\n"), ended


def test_a_compiler(box: WorkerSandbox) -> None:
    skip_without(box, "cc")
    source = """
#include <pthread.h>
#include <stdio.h>
static void *work(void *number) { *(int *)number *= 2; return NULL; }
int main(void) {
    int number = 21;
    pthread_t thread;
    if (pthread_create(&thread, NULL, work, &number)) return 1;
    pthread_join(thread, NULL);
    printf("%d\\n", number);
    return 0;
}
"""
    box.write_file("main.c", source)
    ended = box.exec("cc -O1 -pthread -o program main.c && ./program")
    assert (ended.stdout, ended.exit_code) == ("42\n", 0), ended


GIT = """
set -e
rm -rf repository copy
git init -q -b main repository
cd repository
git config user.name Guest
git config user.email guest@example.org
echo one > file; git add file; git commit -q -m first
git checkout -q -b side; echo two >> file; git commit -q -a -m second
git checkout -q main; git merge -q side; git gc -q
git log --format=%s; git status --short; git diff --stat HEAD~1
cd ..; git clone -q repository copy; cat copy/file
"""


def test_git(box: WorkerSandbox) -> None:
    skip_without(box, "git")
    uses_git(box)


def test_git_without_namespaces(plain: WorkerSandbox) -> None:
    skip_without(plain, "git")
    if os.geteuid() != 0:
        pytest.skip("a box that is the run's user may not change the rights of files")
    uses_git(plain)


def uses_git(box: WorkerSandbox) -> None:
    ended = box.exec(["sh", "-c", GIT])
    assert ended.exit_code == 0, ended
    assert ended.stdout.splitlines()[:2] == ["second", "first"]
    assert ended.stdout.endswith("one\ntwo\n")


def put_packages(box: WorkerSandbox, names: list[str], tmp_path: Path) -> dict[str, str]:
    """Copy packages of this Python into the box; the environment in which they are found."""
    said = box.exec(["python3", "-c", "import sys; print(*sys.version_info[:2])"]).stdout
    if said.split() != [str(number) for number in sys.version_info[:2]]:
        pytest.skip(f"the box has another Python than these tests: {said.strip()}")
    archive = tmp_path / "packages.tar"
    with tarfile.open(archive, "w") as packed:
        for name in names:
            found = importlib.util.find_spec(name)
            if found is None or found.origin is None:
                pytest.skip(f"{name} is not installed")
            place = Path(found.origin)
            place = place.parent if found.submodule_search_locations else place
            for kept in (place, place.with_name(f"{name}.libs")):
                if kept.exists():
                    packed.add(kept, kept.name, filter=_needed)
    box.upload(archive, "packages.tar")
    ended = box.exec("python3 -m tarfile -e packages.tar packages && rm packages.tar")
    assert ended.verdict == "ok", ended
    return {"PYTHONPATH": "packages"}


def _needed(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
    unneeded = {"tests", "include"} & set(Path(member.name).parts)
    return None if unneeded or member.name.endswith((".pyi", ".a")) else member


def put_libraries(box: WorkerSandbox, names: list[str], folder: str) -> None:
    """Copy libraries that numpy takes from the system into a box that does not have them."""
    maps = Path("/proc/self/maps").read_text()  # numpy is loaded here, too
    for name in names:
        found = re.search(rf"/\S*/{re.escape(name)}\.so\.(\d+)\S*$", maps, re.MULTILINE)
        file = f"{name}.so.{found[1]}" if found else ""
        loads = ["python3", "-c", f"import ctypes; ctypes.CDLL({file!r})"]
        if found and box.exec(loads).exit_code:
            box.upload(found[0], f"{folder}/{file}")


@on_every_isolating_backend
def test_numpy(open_box: OpenBox, tmp_path: Path) -> None:
    box = open_box(memory_bytes=1024 * MIB, disk_bytes=192 * MIB)
    env = put_packages(box, ["numpy"], tmp_path)
    put_libraries(box, ["libstdc++", "libgcc_s"], "packages/numpy.libs")
    code = """
import numpy
random = numpy.random.default_rng(0)
matrix = random.normal(size=(300, 300))
assert numpy.allclose(matrix @ numpy.linalg.inv(matrix), numpy.eye(300))
numpy.save("matrix.npy", matrix)
assert (numpy.load("matrix.npy", mmap_mode="r") == matrix).all()
print(numpy.linalg.svd(matrix)[1].shape)
"""
    ended = box.exec(["python3", "-c", code], env=env)
    assert (ended.stdout, ended.exit_code) == ("(300,)\n", 0), ended


PYTEST = ["pytest", "_pytest", "pluggy", "iniconfig", "packaging", "pygments", "py"]


@on_every_isolating_backend
def test_pytest(open_box: OpenBox, tmp_path: Path) -> None:
    box = open_box()
    env = put_packages(box, PYTEST, tmp_path)
    box.write_file("test_it.py", "def test_one(tmp_path): pass\n\ndef test_two(): assert 1 == 2\n")
    ended = box.exec(["python3", "-m", "pytest", "-q"], env=env)
    assert ended.exit_code == 1, ended
    assert "1 failed, 1 passed" in ended.stdout, ended
