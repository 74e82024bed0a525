"""Attacks on processes and privileges: outliving a call, reaching others, gaining rights."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from attack_fixtures import SYSCALL, on_every_isolating_backend, processes_with, run_python, tries
from gymnast.sandboxes.worker.sandbox import WorkerSandbox

pytestmark = on_every_isolating_backend

SURVIVOR = """
import os, signal, sys, time
for number in range(1, 65):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
os.environ.clear()
for fd in range(3): os.close(fd)
os.execvpe("sleep", ["sleep", "600", sys.argv[1]], {"PATH": "/usr/bin:/bin"})
"""


@pytest.fixture
def bystander(mark: str) -> Iterator[int]:
    """A process of the host that belongs to nobody in a box."""
    with subprocess.Popen(["sh", "-c", f"sleep 600; : {mark}"], start_new_session=True) as process:
        yield process.pid
        assert process.poll() is None
        os.killpg(process.pid, 9)


def test_ignoring_signals(victim: WorkerSandbox, mark: str) -> None:
    """Ignoring SIGTERM and all others"""
    stubborn = "trap '' TERM INT HUP QUIT TSTP USR1; while :; do sleep 1; done"
    ended = victim.exec(["sh", "-c", stubborn, mark], timeout_s=0.5)
    assert ended.verdict == "timeout"
    assert not processes_with(mark)


def test_surviving_the_call(victim: WorkerSandbox, mark: str) -> None:
    """Double fork and setsid, with no environment, to outlive the call"""
    assert run_python(victim, SURVIVOR, mark).exit_code == 0
    assert not processes_with(mark)
    victim.write_file("survivor.py", SURVIVOR)
    victim.python(f"import os; os.system('python3 survivor.py {mark}')")
    assert not processes_with(mark)


def test_surviving_the_box(victim: WorkerSandbox, mark: str) -> None:
    """Outliving the box: a survivor that is started while the box is closed"""
    victim.write_file("survivor.py", SURVIVOR)
    victim.python(
        "import subprocess, threading\ndef go():\n    while True:\n"
        f"        subprocess.run(['python3', 'survivor.py', '{mark}'])\n"
        "threading.Thread(target=go, daemon=True).start()"
    )
    victim.close()
    assert not processes_with(mark)


def test_signals_to_the_host(victim: WorkerSandbox, bystander: int) -> None:
    """Signals to processes of the host, one by one and all at once"""
    outcome = tries(
        victim,
        {
            "kill": f"__import__('os').kill({bystander}, 9)",
            "group": f"__import__('os').killpg({bystander}, 9)",
            "run": f"__import__('os').kill({os.getpid()}, 0)",
            "pidfd": f"__import__('signal').pidfd_send_signal(__import__('os')"
            f".pidfd_open({bystander}), 9)",
        },
    )
    assert all("Error" in found for found in outcome.values()), outcome
    victim.exec("kill -9 -1; true")
    Path(f"/proc/{bystander}/stat").read_text()


def test_looking_at_host_processes(victim: WorkerSandbox, bystander: int, mark: str) -> None:
    """Other processes' /proc: command lines, memory, descriptors"""
    code = f"""
import os
found = []
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        found.append({mark!r}.encode() in open(f"/proc/{{pid}}/cmdline", "rb").read())
    except OSError:
        pass
any(found)
"""
    # The text is in none of the box's own command lines: code comes through a pipe.
    assert victim.python(code).stdout == "False\n"
    names = ("cmdline", "status", "environ", "mem", "maps", "fd/0", "cwd/x", "root/etc/shadow")
    outcome = tries(victim, {name: f"open('/proc/{bystander}/{name}', 'rb')" for name in names})
    assert all("Error" in found for found in outcome.values()), outcome


# Numbers of x86-64, with arguments that do no harm where they are allowed.
CALLS = {
    "ptrace": "(101, 16, {pid}, 0, 0)",
    "process_vm_readv": "(310, {pid}, 0, 0, 0, 0, 0)",
    "process_vm_writev": "(311, {pid}, 0, 0, 0, 0, 0)",
    "pidfd_getfd": "(438, 0, 0, 0)",
    "prlimit64": "(302, {pid}, 7, 0, 0)",
    "sched_setaffinity": "(203, {pid}, 8, ctypes.addressof(_mask))",
    "setpriority": "(141, 0, {pid}, 19)",
    "kcmp": "(312, {pid}, {pid}, 0, 0, 0)",
    "process_madvise": "(440, 0, 0, 0, 0, 0)",
    "move_pages": "(279, {pid}, 0, 0, 0, 0, 0)",
    "mount": "(165, 0, 0, 0, 0, 0)",
    "umount2": "(166, 0, 0)",
    "fsopen": "(430, 0, 0)",
    "open_tree": "(428, -100, 0, 0)",
    "pivot_root": "(155, 0, 0)",
    "chroot": "(161, 0)",
    "unshare user": "(272, 0x10000000)",
    "unshare mount": "(272, 0x00020000)",
    "clone user": "(56, 0x10000000 | 17, 0, 0, 0, 0)",
    "setns": "(308, 0, 0)",
    "bpf": "(321, 0, 0, 0)",
    "io_uring_setup": "(425, 1, 0)",
    "userfaultfd": "(323, 0)",
    "perf_event_open": "(298, 0, 0, -1, -1, 0)",
    "keyctl": "(250, 0, 0, 0, 0, 0)",
    "add_key": "(248, 0, 0, 0, 0, 0)",
    "open_by_handle_at": "(304, 0, 0, 0)",
    "init_module": "(175, 0, 0, 0)",
    "kexec_load": "(246, 0, 0, 0, 0)",
    "reboot": "(169, 0, 0, 0, 0)",
    "swapon": "(167, 0, 0)",
    "sethostname": "(170, 0, 0)",
    "settimeofday": "(164, ctypes.addressof(_mask), 0)",
    "syslog": "(103, 3, 0, 0)",
    "iopl": "(172, 3)",
    "setuid": "(105, 0)",
    "setgid": "(106, 0)",
    "setgroups": "(116, 1, ctypes.addressof(_mask))",
    "capset": "(126, ctypes.addressof(_caps), ctypes.addressof(_caps) + 8)",
}


def test_calls_to_the_kernel(victim: WorkerSandbox) -> None:
    """ptrace, mounting, namespaces, set*id, and other calls to the kernel that give power"""
    setup = """
_mask = ctypes.create_string_buffer(b"\\1" + bytes(63))
_caps = ctypes.create_string_buffer(struct.pack("=II", 0x20080522, 0) + b"\\xff" * 24)
"""
    calls = ", ".join(
        f"{name!r}: call{arguments.format(pid=os.getpid())}" for name, arguments in CALLS.items()
    )
    code = SYSCALL + setup + f"\nimport json\nprint(json.dumps({{{calls}}}))"
    ended = victim.python(code)
    assert ended.verdict == "ok", ended
    results = eval(ended.stdout)
    assert {name for name, (result, _) in results.items() if result != -1} == set()
    # EINVAL, EFAULT and the like would be the call's own opinion of the arguments.
    refused = {1, 3, 13, 38}  # EPERM; no such process; EACCES; no such call
    judged = {name for name, (_, number) in results.items() if number not in refused}
    # A box with a user namespace has no user 0 to become.
    unknown = {name for name in ("setuid", "setgid") if results[name][1] == 22}
    assert judged <= {"pidfd_getfd", "process_madvise", "syslog", *unknown}, results


def test_programs_with_rights_of_their_own(victim: WorkerSandbox) -> None:
    """setuid programs, and making one"""
    status = victim.exec("cat /proc/self/status").stdout
    assert "NoNewPrivs:\t1" in status
    assert "CapEff:\t0000000000000000" in status
    assert victim.exec("id -u").stdout.strip() not in ("0", "")
    for program in ("su -c id root", "sudo -n id -u", "newgrp root", "passwd -S root", "mount"):
        assert "uid=0" not in victim.exec(program, stdin="").stdout
    victim.exec("cp /usr/bin/id mine; chmod 6777 mine")
    assert "uid=0" not in victim.exec("./mine").stdout


def test_typing_for_the_terminal(victim: WorkerSandbox) -> None:
    """Typing into the host's terminal (TIOCSTI)"""
    code = """
import fcntl, os
reached = []
for fd in range(0, 64):
    for request in (0x5412, 0x541C):
        try:
            fcntl.ioctl(fd, request, b"x")
            reached.append(fd)
        except OSError:
            pass
try:
    os.open("/dev/tty", os.O_RDWR)
    reached.append("tty")
except OSError:
    pass
reached
"""
    assert victim.python(code).stdout == "[]\n"


def test_shared_memory_of_the_host(victim: WorkerSandbox) -> None:
    """System V shared memory and message queues of the host"""
    made = subprocess.run(["ipcmk", "-M", "4096", "-p", "0666"], capture_output=True, text=True)
    number = made.stdout.split()[-1]
    try:
        code = SYSCALL + f"\nimport json\nprint(json.dumps([call(30, {number}, 0, 0)[0]]))"
        assert victim.python(code).stdout == "[-1]\n"
    finally:
        subprocess.run(["ipcrm", "-m", number], check=True)
