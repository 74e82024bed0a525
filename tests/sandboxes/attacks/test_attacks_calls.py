"""Attacks by system calls that reach past the box, and by what the kernel does not count."""

import json
import platform

import pytest

from attack_fixtures import (
    LIMITS,
    MIB,
    SYSCALL,
    on_every_isolating_backend,
    run_python,
    tries,
)
from gymnast.sandboxes.host.bubblewrap import BubblewrapSandbox
from gymnast.sandboxes.host.landlock import LandlockSandbox
from gymnast.sandboxes.seccomp.bpf_filter import number
from gymnast.sandboxes.seccomp.system_calls import ALLOWED, REFUSED
from gymnast.sandboxes.worker.sandbox import WorkerSandbox

pytestmark = [
    on_every_isolating_backend,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="the numbers are those of x86-64"),
]

NO_SUCH_CALL = [-1, 38]  # ENOSYS
UPROBE = 336  # the kernel's own, for its probes: no filter is asked
UNUSED = range(337, 424)  # there are no such calls, and engines say EPERM


def answers(box: WorkerSandbox, calls: dict[str, str]) -> dict[str, list[int]]:
    """The result and the errno of each call, given by its number and arguments."""
    made = ", ".join(f"{name!r}: call({arguments})" for name, arguments in calls.items())
    setup = "_room = ctypes.create_string_buffer(256)\n_at = ctypes.addressof(_room)\n"
    ended = box.python(f"{SYSCALL}\n{setup}\nimport json\nprint(json.dumps({{{made}}}))")
    assert ended.verdict == "ok", ended
    found: dict[str, list[int]] = json.loads(ended.stdout)
    return found


def test_aio(victim: WorkerSandbox) -> None:
    """All contexts of asynchronous I/O that the machine has"""
    asked = {"io_setup": "206, 65536, _at", "io_submit": "209, 0, 0, 0", "io_uring": "425, 8, _at"}
    assert set(map(tuple, answers(victim, asked).values())) == {tuple(NO_SUCH_CALL)}


def test_notifications(victim: WorkerSandbox) -> None:
    """Being told which files others use: inotify, fanotify, dnotify"""
    asked = {"inotify": "253", "inotify flags": "294, 0", "fanotify": "300, 0x200, 0"}
    assert set(map(tuple, answers(victim, asked).values())) == {tuple(NO_SUCH_CALL)}
    watch = "__import__('fcntl').fcntl(__import__('os').open({!r}, 0), 1026, 1)"
    outcome = tries(victim, {folder: watch.format(folder) for folder in (".", "/usr", "/usr/bin")})
    assert set(outcome.values()) == {"PermissionError"}


def test_leases(victim: WorkerSandbox) -> None:
    """Holding up whoever opens a file (leases)"""
    lease = "__import__('fcntl').fcntl(open('leased', {!r}), 1024, {})"
    outcome = tries(victim, {"write": lease.format("w", 1), "read": lease.format("r", 0)})
    assert set(outcome.values()) == {"PermissionError"}


def test_keys(victim: WorkerSandbox) -> None:
    """Keyrings, which a kernel user shares with all that has its id"""
    asked = {
        "add_key": "248, ctypes.addressof(_key), ctypes.addressof(_key), _at, 1, -4",
        "request_key": "249, ctypes.addressof(_key), ctypes.addressof(_key), 0, -4",
        "keyctl": "250, 0, -4, 1",
    }
    victim.python('import ctypes\n_key = ctypes.create_string_buffer(b"user")')
    assert set(map(tuple, answers(victim, asked).values())) == {tuple(NO_SUCH_CALL)}


def test_what_outlives_its_process(victim: WorkerSandbox) -> None:
    """System V and POSIX memory, semaphores and queues that outlive their process"""
    asked = {
        "shmget": "29, 0, 4096, 0o1600",
        "semget": "64, 0, 1, 0o1600",
        "msgget": "68, 0, 0o1600",
        "mq_open": "240, _at, 0o102, 0o600, 0",
    }
    assert set(map(tuple, answers(victim, asked).values())) == {tuple(NO_SUCH_CALL)}


def test_huge_pages(victim: WorkerSandbox) -> None:
    """The huge pages that the machine keeps for others"""
    asked = {"mmap": "9, 0, 2 << 20, 3, 0x40022, -1, 0", "memfd_create": "319, _at, 4"}
    assert set(map(tuple, answers(victim, asked).values())) == {(-1, 1)}


def test_flushing(victim: WorkerSandbox) -> None:
    """Flushing every disk of the machine (sync)"""
    asked = {"sync": "162", "syncfs": "306, 0"}
    assert set(map(tuple, answers(victim, asked).values())) == {tuple(NO_SUCH_CALL)}


def test_calls_that_nobody_thought_of(victim: WorkerSandbox) -> None:
    """Calls that are not on the list, newer ones among them"""
    allowed, refused = ({number(name, "x86_64") for name in some} for some in (ALLOWED, REFUSED))
    others = [n for n in range(600) if n not in {*allowed, UPROBE, *UNUSED}]
    found = answers(victim, {str(n): str(n) for n in others})
    told = {n: found[str(n)] for n in others}
    assert {n for n in others if told[n] == NO_SUCH_CALL} == set(others) - refused
    assert all(told[n] == [-1, 1] for n in others if n in refused), told


OTHER_ABIS = {
    "x32": "libc.syscall(ctypes.c_long(0x40000000 | 39))",
    "i386": "ctypes.CFUNCTYPE(ctypes.c_int)(at)()",
}


@pytest.mark.parametrize("abi", OTHER_ABIS)
def test_other_abis(victim: WorkerSandbox, abi: str) -> None:
    """Calls by the numbers of i386 and x32"""
    code = f"""
import ctypes, mmap, os
room = mmap.mmap(-1, 4096, prot=7)
room.write(bytes.fromhex("53 b814000000 cd80 5b c3"))  # getpid() by int 0x80
at = ctypes.addressof(ctypes.c_char.from_buffer(room))
libc = ctypes.CDLL(None)
print({OTHER_ABIS[abi]} == os.getpid())
"""
    ended = run_python(victim, code)
    assert ended.stdout == "False\n" or ended.exit_code == 159, ended  # SIGSYS


# Every process fills buffers of one kind until it has no descriptor left, says how much, and stays.
FILL = """
import fcntl, os, socket, sys, time

def pair(kind):
    if kind == 2:
        ends = os.pipe()
        fcntl.fcntl(ends[1], 1031, 1 << 20)
        os.set_blocking(ends[1], False)
        return ends, [lambda: os.write(ends[1], block)]
    ends = socket.socketpair(socket.AF_UNIX, [socket.SOCK_STREAM, socket.SOCK_DGRAM][kind])
    for end in ends:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 30)
        end.setblocking(False)
    return ends, [lambda: ends[0].send(block), lambda: ends[1].send(block)]

kind, block, held, total = 0, bytes(1 << 16), [], 0
for kind in range(11):
    if not os.fork():
        break
try:
    while True:
        ends, writers = pair(kind % 3)
        held.append(ends)
        for write in writers:
            try:
                while True:
                    total += write()
            except BlockingIOError:
                pass
except OSError:
    print(total, flush=True)
time.sleep(1)
"""


def test_memory_in_buffers(victim: WorkerSandbox) -> None:
    """Memory bomb in the buffers of sockets and pipes"""
    by_kernel = LandlockSandbox | BubblewrapSandbox
    if isinstance(victim, by_kernel) and "memory" not in victim.controllers:
        pytest.skip("without control groups memory is limited for each process")
    ended = run_python(victim, FILL)
    held = sum(map(int, ended.stdout.split()))
    assert ended.verdict in ("oom", "dead") or held <= LIMITS["memory_bytes"], ended
    assert held <= LIMITS["memory_bytes"] + 32 * MIB
