"""Attacks on the worker in the box, whose word the host takes for what a call did."""

import logging
import os
import secrets
import traceback

import pytest

from attack_fixtures import on_every_isolating_backend, run_python
from gymnast.errors import SandboxFileError
from gymnast.sandboxes.guest.protocol import pack
from gymnast.sandboxes.worker.sandbox import WorkerSandbox
from gymnast.visible import visible

pytestmark = on_every_isolating_backend

FORGED = pack(
    {
        "nonce": secrets.token_hex(16),
        "reason": "ended",
        "exit_code": 0,
        "oom": False,
        "killed": True,
        "note": "",
        "outputs": [[6, 0, 0], [0, 0, 0]],
    },
    b"forged",
)

SPRAY = f"""
import os, socket
frame = {FORGED!r}
for pid in ["self", str(os.getppid()), "1", *filter(str.isdigit, os.listdir("/proc"))]:
    try:
        names = os.listdir(f"/proc/{{pid}}/fd")
    except OSError:
        names = range(64)
    for fd in names:
        if pid == str(os.getpid()) or (pid == "self" and int(fd) < 3):
            continue
        for flags in (os.O_WRONLY, os.O_RDWR):
            try:
                other = os.open(f"/proc/{{pid}}/fd/{{fd}}", flags | os.O_NONBLOCK)
                os.write(other, frame)
                os.close(other)
            except OSError:
                pass
for fd in range(3, 1024):
    try:
        os.write(fd, frame)
    except OSError:
        pass
"""


def test_forged_answers(victim: WorkerSandbox) -> None:
    """Forged answers, written to stdout and to every descriptor and /proc/PID/fd there is"""
    victim.write_file("frame", FORGED)
    ended = victim.exec("cat frame; exit 7")
    assert (ended.exit_code, ended.verdict) == (7, "nonzero")
    assert run_python(victim, SPRAY + "\nraise SystemExit(8)").exit_code == 8
    victim.python("kept = 1\n" + SPRAY)
    assert victim.exec("echo real; exit 9").exit_code == 9
    assert victim.python("'real'").stdout == "'real'\n"


def test_a_forged_ending_is_the_sessions_own(victim: WorkerSandbox) -> None:
    """A session that says that it has ended, and goes on"""
    code = """
import os, threading, time
def speak():
    while True:
        for fd in range(3, 16):
            try: os.write(fd, b"\\0")
            except OSError: pass
        time.sleep(0.01)
threading.Thread(target=speak, daemon=True).start()
"""
    victim.python(code)
    assert victim.exec("echo real").stdout == "real\n"
    for _ in range(5):  # a session that speaks out of turn is ended
        victim.python("raise ValueError")
    assert victim.python("2 + 2").stdout == "4\n"


def test_killing_the_worker(victim: WorkerSandbox) -> None:
    """Killing, stopping and signalling the worker"""
    code = """
import os, signal
for pid in {os.getppid(), 1}:
    for number in range(1, 65):
        try: os.kill(pid, number)
        except (OSError, ValueError): pass
"""
    assert victim.python(code).verdict == "ok"
    run_python(victim, code)
    victim.exec("kill -STOP -1; kill -9 -1")
    assert victim.ping()
    assert victim.alive


def test_looking_into_the_worker(victim: WorkerSandbox) -> None:
    """Reading and writing the worker's memory"""
    code = """
import os
found = []
worker = os.getppid()
for name in ("mem", "environ", "maps", "smaps", "auxv", "stack", "syscall", "pagemap", "fd/0",
             "cwd/.", "root/.", "exe", "task/%d/mem" % worker, "map_files"):
    for flags in (os.O_RDONLY, os.O_RDWR):
        for start in (f"/proc/{worker}", f"/proc/self/../{worker}"):
            try:
                fd = os.open(f"{start}/{name}", flags)
                found.append((name, len(os.read(fd, 1))))
            except OSError:
                pass
found
"""
    assert victim.python(code).stdout == "[]\n"


def test_limits_of_the_worker(victim: WorkerSandbox) -> None:
    """Taking the worker's memory, time and priority away (prlimit, renice)"""
    code = """
import os, resource
worker, changed = os.getppid(), []
for name in ("AS", "DATA", "CPU", "NOFILE", "FSIZE", "STACK"):
    try:
        resource.prlimit(worker, getattr(resource, "RLIMIT_" + name), (0, 0))
        changed.append(name)
    except (OSError, ValueError):
        pass
for change in (lambda: os.setpriority(os.PRIO_PROCESS, worker, 19),
               lambda: os.setpriority(os.PRIO_USER, os.getuid(), 19),
               lambda: os.sched_setaffinity(worker, {0}),
               lambda: os.sched_setscheduler(worker, os.SCHED_IDLE, os.sched_param(0))):
    try:
        change()
        changed.append("scheduling")
    except OSError:
        pass
changed
"""
    assert victim.python(code).stdout == "[]\n"


def test_own_limits_cannot_be_raised(victim: WorkerSandbox) -> None:
    """Raising one's own limits"""
    limited = ("CORE", "MEMLOCK", "MSGQUEUE", "NOFILE", "SIGPENDING")
    code = f"""
import resource
raised = []
for name in dir(resource):
    if name.startswith("RLIMIT_"):
        number = getattr(resource, name)
        soft, hard = resource.getrlimit(number)
        if hard != resource.RLIM_INFINITY:
            try:
                resource.setrlimit(number, (hard + 1, hard + 1))
                raised.append(name)
            except (OSError, ValueError):
                pass
        if soft != hard and name.removeprefix("RLIMIT_") in {limited!r}:
            raised.append(name)
for path in ("/proc/self/oom_score_adj", "/proc/thread-self/oom_score_adj", "/proc/self/oom_adj"):
    for value in ("-17", "0", "15", "500", "999"):
        try:
            with open(path, "w") as file: file.write(value)
            raised.append(path)
        except OSError:
            pass
raised
"""
    assert victim.python(code).stdout == "[]\n"
    # With 0 a crash would start the program that the host has for core dumps, if it has one.
    core = "import resource; resource.getrlimit(resource.RLIMIT_CORE)"
    assert victim.python(core).stdout == "(1, 1)\n"


def test_closing_everything(victim: WorkerSandbox) -> None:
    """Closing every descriptor of the session"""
    victim.python("import os; os.closerange(0, 1024)")
    assert victim.exec("echo real").stdout == "real\n"
    assert victim.python("'real'").stdout == "'real'\n"


def test_the_hosts_own_descriptors(victim: WorkerSandbox) -> None:
    """Descriptors of the run that were inherited"""
    read, write = os.pipe()
    os.set_inheritable(write, True)
    try:
        listed = victim.exec("ls -l /proc/self/fd").stdout
        assert f"pipe:[{os.fstat(write).st_ino}]" not in listed
    finally:
        os.close(read)
        os.close(write)


def test_modules_in_the_way(victim: WorkerSandbox) -> None:
    """Modules of the guest's in the way of those that the worker and Python import"""
    for name in ("json", "os", "subprocess", "sitecustomize", "usercustomize", "ctypes"):
        victim.write_file(f"{name}.py", "raise SystemExit('owned')")
        victim.write_file(f"/tmp/{name}.py", "raise SystemExit('owned')")
    assert victim.ping()
    assert victim.exec("echo real").stdout == "real\n"
    victim.exec("rm -rf *.py /tmp/*.py __pycache__")
    assert victim.python("raise SystemExit").verdict in ("ok", "nonzero")


STEERING = "\x1b]0;owned\x07\x9b2J\rok\u202e\u2028"


def test_terminal_text(victim: WorkerSandbox, caplog: pytest.LogCaptureFixture) -> None:
    """Terminal text: escape sequences in output, in names of files and in errors"""
    caplog.set_level(logging.DEBUG)
    victim.exec(["mkdir", STEERING])
    said = []
    for path in (STEERING, f"{STEERING}/missing\nerror: no", f"{STEERING}/../\x1b[31m"):
        with pytest.raises(SandboxFileError) as failed:
            victim.read_file(path)
        said += [str(failed.value), "".join(traceback.format_exception(failed.value))]
        assert "\n" not in str(failed.value), "nothing begins a line of its own"
    for dying in (f"raise ValueError({STEERING!r})", f"import sys; sys.exit({STEERING!r})"):
        for ended in (victim.python(dying), run_python(victim, dying)):
            assert STEERING in ended.stderr, "whoever reads it has it as it is"
            said.append(repr(ended))
    victim.exec("kill -9 1; kill -9 -1")
    for text in [*said, caplog.text]:
        assert text == visible(text)


def test_too_much_for_a_frame(victim: WorkerSandbox) -> None:
    """A folder deeper and names longer than any path"""
    code = """
import os
for _ in range(3000):
    os.mkdir("d" * 100)
    os.chdir("d" * 100)
"""
    run_python(victim, code)
    for path in ("d" * 5000, "/".join(["d" * 100] * 3000)):
        with pytest.raises(OSError):
            victim.read_file(path)
