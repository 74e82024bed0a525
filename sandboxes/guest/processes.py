"""The processes below the worker: finding them, learning how they ended, killing them.

The worker is a subreaper: a process that forks twice or starts a session of its own becomes its
child when its parent ends, so that nothing gets out of the tree below it.

The host uses the functions that read /proc too (`lifetime/processes.py`).
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import signal
import time
from typing import Callable, Dict, Iterable, Iterator, List, Optional, Set

KILL_S = 2.0  # how long killing is tried before the box is given up

_SET_DUMPABLE, _SET_CHILD_SUBREAPER = 4, 36
_OOM_COUNTERS = ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control")


def set_dumpable(dumpable: bool) -> None:
    """Set whether processes of the same user may look into this one."""
    _prctl(_SET_DUMPABLE, int(dumpable))


def become_subreaper() -> None:
    """Adopt every process that is orphaned below this one."""
    _prctl(_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, "prctl(%d, %d): %s" % (option, value, os.strerror(number)))


def process_ids() -> List[int]:
    """The processes that /proc shows; none in a box whose /proc nobody may list."""
    with contextlib.suppress(OSError):
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    return []


def read_stat(pid: int) -> List[bytes]:
    """The fields of /proc/PID/stat from the state on (the parent is next); none if it has ended."""
    try:
        with open("/proc/%d/stat" % pid, "rb") as file:
            stat = file.read()
    except OSError:
        return []
    # The name of the command, which comes before, may itself hold parentheses and spaces.
    return stat[stat.rindex(b")") + 2 :].split()


class Processes:
    """Everything below the worker.

    Args:
        alone: Whether the worker can signal nothing outside of its box. Only then may it kill all
            that it can signal.
        proc: A descriptor of a writable /proc, if the box's own is not. It is closed.
    """

    def __init__(self, alone: bool, proc: Optional[int] = None) -> None:
        self.ended: Dict[int, int] = {}  # exit codes of the watched
        self.started: Set[int] = set()  # run beside the calls, and are spared after each
        self._alone = alone
        self._watched: Set[int] = set()
        self._pid = os.getpid()
        # Kept open: in some boxes nothing of /proc can be opened later on.
        self._children = -1
        with contextlib.suppress(OSError):  # some kernels lack this file
            children = "/proc/self/task/%d/children" % self._pid
            self._children = os.open(children, os.O_RDONLY | os.O_CLOEXEC)
        self._oom_score, self._own_score = -1, b""
        # Opened while this process is dumpable: later only root may. In some boxes nobody may.
        with contextlib.suppress(OSError):
            place = "/proc/self/oom_score_adj" if proc is None else "self/oom_score_adj"
            self._oom_score = os.open(place, os.O_RDWR | os.O_CLOEXEC, dir_fd=proc)
            self._own_score = os.read(self._oom_score, 16)
        if proc is not None:
            os.close(proc)

    def watch(self, pid: int) -> None:
        """Keep the exit code of this child when it ends."""
        self._watched.add(pid)

    def reap(self) -> bool:
        """Collect children that have ended, a limited number even if the guest forks endlessly.

        Returns:
            Whether there may be more children.
        """
        for _ in range(1000):
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid in self._watched:
                self._watched.discard(pid)
                self.started.discard(pid)
                killed = os.WIFSIGNALED(status)
                self.ended[pid] = 128 + os.WTERMSIG(status) if killed else os.WEXITSTATUS(status)
        return True

    @contextlib.contextmanager
    def first_victims(self) -> Iterator[None]:
        """Processes forked in this block are killed first when memory runs out."""
        with contextlib.suppress(OSError):
            os.pwrite(self._oom_score, b"1000", 0)
        try:
            yield
        finally:
            if os.getpid() == self._pid:  # a forked child comes here too, at any later time
                with contextlib.suppress(OSError):
                    os.pwrite(self._oom_score, self._own_score, 0)

    def tidy(self, session: Optional[int]) -> bool:
        """Kill what a call has left behind; spare the session and the started, with their own."""
        self.reap()
        if self._children < 0:
            return self.kill(session)
        spared = self._spared(session)
        left = any(not self._is_kept(pid, spared) for pid in self._own_children())
        return self.kill(session) if left else True

    def _own_children(self) -> Set[int]:
        """The children of this process, adopted orphans included; empty if they are unknown."""
        if self._children < 0:
            return set()
        text = b""
        while True:  # one call may not return all of it
            piece = os.pread(self._children, 1 << 16, len(text))
            if not piece:
                return {int(pid) for pid in text.split()}
            text += piece

    def kill(self, session: Optional[int] = None) -> bool:
        """Kill every process below the worker; spare the session and the started, with their own.

        Those started are spared no more if they keep adding to what is to be killed.

        Returns:
            Whether none is left. If False, the box must not be used again.
        """
        if session is None and self._alone and not self.started:
            self._kill_all()
        begun = time.monotonic()
        until = begun + KILL_S
        tried_all = not self._alone
        while True:
            self.reap()
            spared = self._spared(session)
            left = self._freeze(functools.partial(self._below, spared))
            if not left:
                return True
            now = time.monotonic()
            if now > until and tried_all:
                return False
            self._kill_frozen(left, spared)
            if now - begun > KILL_S / 4:
                self.started.clear()
                if self._alone:
                    _send(-1, signal.SIGKILL)  # to all at once, so that none can fork in between
                    until, tried_all = (until, True) if tried_all else (now + KILL_S, True)
            time.sleep(0.001)

    def kill_started(self, pid: int) -> bool:
        """Kill one that was started, what is below it, and the rest of its session.

        Returns:
            Whether none is left.
        """
        self.started.discard(pid)
        until = time.monotonic() + KILL_S
        while True:
            self.reap()
            left = self._freeze(functools.partial(self._of_started, pid))
            if not left:
                return True
            if time.monotonic() > until:
                return False
            self._kill_frozen(left, set())
            time.sleep(0.001)

    def kill_for_good(self) -> bool:
        """Kill every process below the worker, those started as well: the host has gone."""
        self.started.clear()
        return self.kill()

    def _spared(self, session: Optional[int]) -> Set[int]:
        return self.started if session is None else self.started | {session}

    def _is_kept(self, pid: int, spared: Set[int]) -> bool:
        """Whether it is spared, or an orphan in the session of one that was started."""
        return pid in spared or _session_of(pid) in self.started

    def _below(self, spared: Set[int]) -> Set[int]:
        """All processes below this one, but those that are kept and what is below them."""
        # With the children that the kernel itself lists: some boxes show no processes in /proc.
        found = set(_descendants([os.getpid()], lambda pid: self._is_kept(pid, spared)))
        return found | {pid for pid in self._own_children() if not self._is_kept(pid, spared)}

    def _of_started(self, root: int) -> Set[int]:
        """A started process unless it has ended, what is below it, and what is in its session."""
        found = {pid for pid in (*process_ids(), *self._own_children()) if _session_of(pid) == root}
        return found | set(_descendants([root], lambda pid: False)) | ({root} & self._watched)

    def _kill_frozen(self, left: Set[int], spared: Set[int]) -> None:
        # A group at once, so that none of it can fork in between.
        for group in self._groups(left, spared):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(group, signal.SIGKILL)
        for pid in left:
            _send(pid, signal.SIGKILL)

    def _groups(self, pids: Set[int], spared: Set[int]) -> Set[int]:
        """The groups of these processes but those of the worker and of what is spared."""
        kept = {0, *spared}
        if self.started:
            kept.update(_descendants(self.started, lambda pid: False))
        return {_group_of(pid) for pid in pids} - {_group_of(pid) for pid in kept} - {0}

    def _kill_all(self) -> None:
        """Kill all at once, and wait without allocating memory.

        If memory has run out, they hold it until they have ended. Should this process ask for some
        before that, the kernel, which counts ending processes as dead, would kill this one.
        """
        _send(-1, signal.SIGKILL)
        until = time.monotonic() + KILL_S / 4
        while self.reap() and time.monotonic() < until:
            time.sleep(0.001)

    def _freeze(self, find: Callable[[], Set[int]]) -> Set[int]:
        """Stop all that are found, so that none forks while the others are killed."""
        seen: Set[int] = set()
        until = time.monotonic() + KILL_S / 4
        for _ in range(50):
            new = find() - seen
            if not new or time.monotonic() > until:
                break
            for pid in new:
                _send(pid, signal.SIGSTOP)
            seen |= new
        return seen


def _send(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def _session_of(pid: int) -> int:
    """The session of a process; 0 if there is no such process."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        return os.getsid(pid)
    return 0


def _group_of(pid: int) -> int:
    """The group of a process, of this one for 0; 0 if there is no such process."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        return os.getpgid(pid)
    return 0


def _descendants(roots: Iterable[int], is_kept: Callable[[int], bool]) -> List[int]:
    children: Dict[int, List[int]] = {}
    for pid in process_ids():
        stat = read_stat(pid)
        if stat:
            children.setdefault(int(stat[1]), []).append(pid)
    found: List[int] = []
    todo = list(roots)
    while todo:
        for pid in children.get(todo.pop(), ()):
            if not is_kept(pid):
                found.append(pid)
                todo.append(pid)
    return found


def oom_kills() -> int:
    """How many processes of this box the kernel has killed for lack of memory."""
    for path in _OOM_COUNTERS:
        with contextlib.suppress(OSError), open(path) as file:
            for line in file:
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
    return 0
