"""Attacks by a process that was started beside the calls: flooding, hanging, outliving its end."""

import hashlib
import threading
import time

import pytest

from attack_fixtures import MIB, on_every_isolating_backend, processes_with
from gymnast.errors import ProcessTimeout
from gymnast.sandboxes.worker.sandbox import WorkerSandbox

pytestmark = on_every_isolating_backend

# Forks one at a time, in sessions of their own, so that always another one is left.
CHAIN = """
import os, signal, sys
for number in range(1, 65):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): pass
os.close(0); os.close(1); os.close(2)
while True:
    if os.fork(): os._exit(0)
    if len(sys.argv) > 2: os.setsid()
"""

ORPHANS = """
import os, sys, time
print("begun", flush=True)
while True:
    try: pid = os.fork()
    except OSError: continue
    if pid: os.waitpid(pid, 0)
    else:
        os.setsid()
        try: last = os.fork()
        except OSError: last = 1
        if not last: time.sleep(600)
        os._exit(0)
"""


def resident_bytes(box: WorkerSandbox) -> int:
    """The memory of the worker."""
    return 4096 * int(box.exec("cat /proc/1/statm").stdout.split()[1])


def answers(box: WorkerSandbox) -> bool:
    ended = box.exec("echo call", timeout_s=20)
    return ended.stdout == "call\n" and box.python("6 * 7").stdout == "42\n"


def test_flood(victim: WorkerSandbox, mark: str) -> None:
    """Output without end of processes that were started, while nobody reads it"""
    flood = f"yes {mark} & yes {mark} >&2"
    processes = [victim.start(flood) for _ in range(4)]
    for process in processes:
        assert process.stdout.read(1000, timeout_s=20)
    before = resident_bytes(victim)
    for _ in range(20):
        assert answers(victim)
    assert resident_bytes(victim) < before + 4 * MIB
    for process in processes:
        assert process.stderr.read(1000, timeout_s=20)
        process.close()
    assert not processes_with(mark)


def test_input_that_is_not_read(victim: WorkerSandbox, mark: str) -> None:
    """A started process that never reads its stdin, while the host writes to it"""
    with victim.start(["sh", "-c", "sleep 600", mark]) as process:
        with pytest.raises(ProcessTimeout):
            process.stdin.write(b"x" * (8 << 20), timeout_s=0.5)
        assert answers(victim)


def test_a_line_without_end(victim: WorkerSandbox) -> None:
    """A started process whose line does not end"""
    with victim.start("tr '\\0' x </dev/zero") as process:
        line = process.stdout.readline(max_bytes=1 << 20, timeout_s=60)
        assert line == b"x" * (1 << 20)
        assert answers(victim)


@pytest.mark.parametrize("detached", [[], ["detached"]])
def test_forking_on_and_on(victim: WorkerSandbox, mark: str, detached: list[str]) -> None:
    """A started process that ignores signals, closes its streams, and forks on and on"""
    process = victim.start(["python3", "-c", CHAIN, mark, *detached])
    time.sleep(0.2)
    process.kill()
    assert process.wait(timeout_s=20) in (0, 137)
    assert process.stdout.read(timeout_s=20) == b""
    assert not processes_with(mark)


def test_orphans_without_end(victim: WorkerSandbox, mark: str) -> None:
    """A started process that leaves orphans faster than calls can tidy up"""
    process = victim.start(["python3", "-c", ORPHANS, mark])
    assert process.stdout.readline(timeout_s=20) == b"begun\n"
    for _ in range(5):
        victim.exec("true", timeout_s=20)  # there may be no process left for it
        if not victim.alive:
            return
    process.close()
    assert not processes_with(mark)


def test_killing_the_worker(victim: WorkerSandbox, mark: str) -> None:
    """A started process that kills, stops and signals all it can, the worker among it"""
    kill = "import os\nfor number in (19, 2, 15, 1, 9): os.kill(-1, number)"
    process = victim.start(["python3", "-c", kill, mark])
    assert process.wait(timeout_s=20) in (0, 1, 128 + 15)
    victim.python("0")  # its session may be among the killed
    assert answers(victim)


def test_a_bomb_beside_the_calls(victim: WorkerSandbox, mark: str) -> None:
    """A fork bomb that was started, and killed after some calls"""
    bomb = "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass"
    process = victim.start(["python3", "-c", bomb, mark])
    for _ in range(3):
        victim.exec("true", timeout_s=20)  # there may be no process left for it
    process.close()
    assert not processes_with(mark)


LOOK = """
import hashlib, re
found = []
for line in open("/proc/self/maps").readlines():
    begin, end = (int(part, 16) for part in line.split()[0].split("-"))
    if line.split()[1].startswith("rw"):
        with open("/proc/self/mem", "rb", 0) as memory:
            memory.seek(begin)
            data = memory.read(end - begin)
        for text in re.findall(rb"(?<![0-9a-f])[0-9a-f]{32}(?![0-9a-f])", data):
            found.append(hashlib.sha256(text).hexdigest())
print(len(found) > 0, set(found) & WAITING)
"""


def test_nonces(victim: WorkerSandbox) -> None:
    """A session that looks in its memory for the nonce of a request that waits for a process"""
    requests = victim._link
    assert requests is not None
    with victim.start(["cat"]) as process:
        reading = threading.Thread(target=process.stdout.read)
        reading.start()
        while not requests._waiting:
            time.sleep(0.01)
        victim.exec("true")  # the read has reached the worker before this
        victim.python("raise SystemExit")  # the next session is forked while the read waits
        time.sleep(0.5)
        waiting = {hashlib.sha256(nonce.encode()).hexdigest() for nonce in requests._waiting}
        assert waiting
        ended = victim.python(f"WAITING = {waiting}\n{LOOK}")
        assert ended.stdout == "True set()\n", ended
        process.stdin.close()
        reading.join()
