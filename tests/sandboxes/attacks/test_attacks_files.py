"""Attacks on files: of the host, of the run, of other boxes; by code and through the file calls."""

import fcntl
import json
import os
import secrets
import stat
import sys
import sysconfig
from pathlib import Path

import pytest

from attack_fixtures import LIMITS, on_every_isolating_backend, tries
from gymnast.envs.builtin.code import tasks as code_tasks
from gymnast.errors import SandboxFileError
from gymnast.sandboxes.docker.engine import engine_client, has_all_user_ids
from gymnast.sandboxes.worker.sandbox import WorkerSandbox
from sandbox_fixtures import OpenBox

pytestmark = on_every_isolating_backend

SECRET = secrets.token_hex(16)
SOLUTION = "sum(letter in 'aeiou' for letter in text)"
REPOSITORY = Path(__file__).parents[3]


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A file like those of a run's output folder, which everyone on the host may read."""
    path = tmp_path / "rollouts.jsonl"
    path.write_text(SECRET)
    for folder in (path, *path.parents):
        if os.geteuid() in (0, folder.stat().st_uid):
            if folder == Path("/tmp"):
                break
            folder.chmod(folder.stat().st_mode | stat.S_IROTH | stat.S_IXOTH)
    return path


def host_files(secret: Path) -> list[str]:
    return [
        str(secret),
        "/etc/shadow",
        "/etc/ssh/sshd_config",
        str(Path.home() / ".bashrc"),
        str(REPOSITORY / "pyproject.toml"),
        str(REPOSITORY / ".git/config"),
        f"/proc/1/root{secret}",
        f"/proc/{os.getpid()}/environ",
        f"/proc/{os.getpid()}/root{secret}",
    ]


def test_reading_host_files_by_code(victim: WorkerSandbox, secret: Path) -> None:
    """Reading the host's and the run's files: /etc/shadow, the home, the repository, the output"""
    assert secret.read_text() == SECRET  # here it can be read
    paths = host_files(secret)
    outcome = tries(victim, {path: f"open({path!r}, 'rb').read()" for path in paths})
    hosts = [path for path in paths if os.path.exists(path)]
    assert len(hosts) >= 4
    for path in hosts:
        refused = ("PermissionError", "FileNotFoundError", "NotADirectoryError")
        assert outcome[path] in refused or _is_the_boxes_own(path, outcome[path]), path
    assert SECRET not in str(outcome)


def _is_the_boxes_own(path: str, shown: str) -> bool:
    """Whether what was read there is another file than the host's of that name."""
    return not path.startswith("/proc/") and Path(path).read_bytes() != eval(shown)


def test_reading_the_environment_that_runs_this(victim: WorkerSandbox) -> None:
    """Reading the environment that runs Gymnast: packages, solutions of tasks, settings of pip"""
    solutions = Path(code_tasks.__file__)
    assert SOLUTION in solutions.read_text()
    names = ("gymnast", "gymnast.envs.builtin.code.tasks", "torch", "numpy")
    imports = {name: f"__import__({name!r})" for name in names}
    assert set(tries(victim, imports).values()) == {"ModuleNotFoundError"}
    for path in (solutions, Path(sys.prefix) / "pip.conf", Path(sys.prefix) / "pyvenv.cfg"):
        with pytest.raises(SandboxFileError):
            victim.read_file(str(path))
    folders = {sys.prefix, *sysconfig.get_paths().values(), str(REPOSITORY)}
    command = ["grep", "-rlsF", SOLUTION, "--", *folders, "/usr/lib/python3", "/usr/local/lib"]
    assert victim.exec(command).stdout == ""


def test_reading_host_files_through_the_call(victim: WorkerSandbox, secret: Path) -> None:
    """Reading them through read_file, with .. and by links"""
    victim.exec(f"ln -s {secret} link; ln -s / root; ln -s /proc/self/root/etc/shadow shadow")
    up = "../" * 20
    for path in (str(secret), f"{up}{secret}", "link", f"root{secret}", "shadow", "/etc/shadow",
                 f"{up}etc/shadow", f"{up}proc/1/root{secret}", "/proc/self/environ",
                 "/proc/self/mem"):  # fmt: skip
        try:
            data = victim.read_file(path)
        except SandboxFileError:
            continue
        assert path.endswith("shadow") and data != Path("/etc/shadow").read_bytes(), path


def test_writing_host_files(victim: WorkerSandbox, secret: Path) -> None:
    """Writing the host's files, by code and through write_file, with .. and by links"""
    before = {path: _state(path) for path in ("/etc/passwd", "/usr/bin/env", str(secret))}
    victim.exec(f"ln -s {secret} link; ln -s {secret.parent} folder; ln -s /etc etc")
    up = "../" * 20
    paths = [str(secret), f"{up}{secret}", "link", "folder/new", "etc/passwd", "/usr/bin/env"]
    for path in paths:
        victim.exec(f"echo owned >> {path}; echo owned > {path}; chmod 777 {path}; rm -f {path}")
        try:
            victim.write_file(path, "owned")
        except SandboxFileError:
            continue
    assert before == {path: _state(path) for path in before}
    assert os.listdir(secret.parent) == [secret.name]


def _state(path: str) -> tuple[bytes, int]:
    return Path(path).read_bytes(), Path(path).stat().st_mode


def test_moving_and_linking_host_files(victim: WorkerSandbox, secret: Path) -> None:
    """Hard links to and renames of the host's files"""
    outcome = tries(
        victim,
        {
            "link": f"__import__('os').link({str(secret)!r}, 'hard')",
            "rename": f"__import__('os').rename({str(secret)!r}, 'mine')",
            "program": "__import__('os').link('/usr/bin/env', 'env')",
            "folder": f"__import__('os').rename({str(secret.parent)!r}, 'mine')",
        },
    )
    assert set(outcome.values()) <= {"PermissionError", "FileNotFoundError", "OSError"}, outcome
    assert secret.read_text() == SECRET and secret.stat().st_nlink == 1


def test_another_box(victim: WorkerSandbox, open_box: OpenBox) -> None:
    """Files, processes and /tmp of another box"""
    other = open_box(**LIMITS)
    other.write_file("private", SECRET)
    other.exec(f"echo {SECRET} > /tmp/private; chmod -R a+rwX . /tmp/private")
    folder = other.exec("pwd").stdout.strip()
    session = other.python("import os; os.getpid()").stdout.strip()
    beside = victim.exec("cd ..; pwd").stdout.strip().rstrip("/")  # of the root, nothing
    assert not victim.exec(f"grep -rs {SECRET} /tmp /work {beside} /dev/shm").stdout
    for path in (f"{folder}/private", "/tmp/private"):
        with pytest.raises(SandboxFileError):
            victim.read_file(path)
    victim.exec(f"echo owned > {folder}/private; kill -9 {session}; kill -9 -1")
    assert other.read_file("private") == SECRET.encode()
    assert other.python("'lives'").stdout == "'lives'\n"


def test_devices(victim: WorkerSandbox) -> None:
    """Devices: disks, memory, terminals, kernel messages"""
    names = [entry.name for entry in Path("/dev").iterdir() if not entry.is_dir()]
    harmless = {"null", "zero", "full", "random", "urandom", "tty", "ptmx", "stdin", "stdout",
                "stderr", "fd", "core", "log"}  # fmt: skip
    wanted = [*(name for name in names if name not in harmless), "mem", "kmsg", "kvm", "vsock"]
    outcome = tries(victim, {name: f"open('/dev/{name}', 'rb', 0)" for name in wanted})
    outcome |= tries(victim, {f"w {name}": f"open('/dev/{name}', 'wb', 0)" for name in wanted})
    assert {found for found in outcome.values() if "Error" not in found} <= set(), outcome
    made = tries(victim, {"mknod": "__import__('os').mknod('disk', 0o60666, 0xfe00)"})
    assert made == {"mknod": "PermissionError"}


def test_kernel_settings(victim: WorkerSandbox) -> None:
    """Writing /proc/sys, /sys and cgroups"""
    settings = ("/proc/sys/kernel/hostname", "/proc/sys/vm/overcommit_memory",
                "/proc/sys/kernel/core_pattern", "/proc/sysrq-trigger",
                "/sys/kernel/mm/transparent_hugepage/enabled", "/sys/fs/cgroup/new",
                "/sys/fs/cgroup/memory/memory.limit_in_bytes",
                "/sys/fs/cgroup/cgroup.procs")  # fmt: skip
    before = Path("/proc/sys/kernel/core_pattern").read_text()
    outcome = tries(victim, {path: f"open({path!r}, 'w').write('0')" for path in settings})
    folder = "__import__('os').mkdir('/sys/fs/cgroup/memory/mine')"
    outcome |= tries(victim, {"mkdir": folder})
    assert all("Error" in found for found in outcome.values()), outcome
    assert Path("/proc/sys/kernel/core_pattern").read_text() == before


def may_have_devices(backend: str) -> bool:
    """Whether a box can have devices of its own: in no user namespace."""
    return has_all_user_ids(engine_client()) if backend == "docker" else os.geteuid() == 0


HOLD_LOCKS = """
import fcntl, json, os, sys
held = {}
names = ["/usr", "/usr/bin/env", os.path.realpath(sys.executable), os.__file__]
for path in [*names, "/etc/ld.so.cache", "/dev/null", "/dev/zero", "/dev/urandom"]:
    try:
        held[path] = os.open(path, os.O_RDONLY)
        fcntl.flock(held[path], fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        held.pop(path, None)
print(json.dumps(list(held)))
"""


def test_locks(victim: WorkerSandbox, open_box: OpenBox, backend: str) -> None:
    """Locking the host's programs and devices, so that the host or another box has to wait"""
    held = set(json.loads(victim.python(HOLD_LOCKS).stdout))
    if not may_have_devices(backend):
        held -= {path for path in held if path.startswith("/dev/")}
    assert len(held) >= 4
    assert held <= set(json.loads(open_box(**LIMITS).python(HOLD_LOCKS).stdout))
    locked = []
    for path in filter(os.path.exists, held):
        fd = os.open(path, os.O_RDONLY)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            locked.append(path)
        finally:
            os.close(fd)
    assert locked == []
