"""The cores that this process computes on: those that it may use, less what other programs use.

Threads of OpenMP that have nothing to do spin for milliseconds before they sleep. Where programs
share cores, a thread that spins takes the time of the thread that it waits for. `share_cores` lets
such threads sleep soon, and keeps torch from starting more of them than there are cores:

    from gymnast.cores import share_cores
    share_cores()                 # before torch is imported
    import torch

The `gymnast` command calls it. Variables that the user has set win: those of the wait policy
(OMP_WAIT_POLICY, GOMP_SPINCOUNT, KMP_BLOCKTIME) and of the number of threads (OMP_NUM_THREADS,
MKL_NUM_THREADS, which torchrun and accelerate set for several processes).
"""

import os
import sys
from collections.abc import Iterator
from fractions import Fraction
from math import ceil
from pathlib import Path
from typing import Any

from gymnast.imports import when_imported
from gymnast.visible import visible_logger

_WAIT_VARIABLES = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
# GNU OpenMP, which torch's wheels bring, spins 300,000 times by default, and not at all under
# PASSIVE. Waking a thread takes longer than the time between two operations of a small model, so a
# short spin makes it as fast as the default on idle cores, and as PASSIVE on busy ones.
_SPINS = 10_000

logger = visible_logger(__name__)


def share_cores() -> None:
    """Let threads without work sleep soon, and limit torch's threads to `cores_left`.

    Call it before torch is imported: OpenMP reads the wait policy once, when it is loaded. The
    policy stays in `os.environ`, so programs that this one starts wait in the same way; they
    inherit no number of threads.
    """
    if not any(name in os.environ for name in _WAIT_VARIABLES):
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
        os.environ["GOMP_SPINCOUNT"] = str(_SPINS)  # GNU OpenMP prefers it to the policy
        if "torch" in sys.modules:
            logger.warning(
                "share_cores: torch is imported already, so its idle threads go on spinning; call "
                "share_cores before the first import of torch"
            )
    if not any(name in os.environ for name in _THREAD_VARIABLES):
        when_imported("torch", _limits.apply)


def ignore_load() -> None:
    """Let torch use all cores that this process may use, whatever other programs do.

    The last bits of a sum depend on the number of threads that compute it. Deterministic runs call
    this, so that another run, or a resumed one, computes the same under another load. Nothing
    happens if `share_cores` was not called, or torch's number of threads was changed since.
    """
    if _limits.torch is not None and _limits.torch.get_num_threads() == _limits.threads:
        _limits.apply(_limits.torch, load=False)


def cores_left(
    *, load: bool = True, proc: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")
) -> int:
    """Return the number of threads that this process should compute with, at least 1.

    It is the smallest of

    - the CPUs that the process may run on (its affinity, which cpusets limit),
    - the quota of its control group and of those above it, rounded up,
    - the machine's cores less the load, but never less than half of them, nor than 2: a program
      that takes no more than idle cores gets less than its share of a busy machine. (With two busy
      loops on two cores, one thread got half a core, and two threads got a whole one.)

    divided by the processes that a launcher started on this machine (LOCAL_WORLD_SIZE).

    Args:
        load: Whether other programs count.
        proc: Where the kernel reports the load and the process's control groups.
        groups: Where control groups are mounted.
    """
    cores = os.cpu_count() or 1
    limits = [Fraction(_allowed_cpus()), *_quotas(proc, groups)]
    if load:
        limits.append(Fraction(max(cores - round(_load(proc)), cores // 2, 2)))
    processes = os.environ.get("LOCAL_WORLD_SIZE", "")
    share = int(processes) if processes.isdecimal() else 1
    return max(1, ceil(min(limits)) // max(1, share))


class _Limits:
    """The number of threads that was set in torch.

    Attributes:
        torch: The module, once it is imported.
        threads: The number that was set last.
    """

    def __init__(self) -> None:
        self.torch: Any = None
        self.threads = 0
        self._default = 0  # torch's own choice: the cores, without a second thread on each

    def apply(self, torch: Any, *, load: bool = True) -> None:
        """Set torch's number of threads: its own choice, or fewer."""
        if self.torch is None:
            self.torch, self._default = torch, torch.get_num_threads()
        self.threads = min(self._default, cores_left(load=load))
        if self.threads != torch.get_num_threads():
            torch.set_num_threads(self.threads)
            logger.info(
                "torch computes with %d of %d threads, for the limits of this process and the load "
                "of the machine (OMP_NUM_THREADS sets another number)",
                self.threads,
                self._default,
            )


_limits = _Limits()


def _allowed_cpus() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _load(proc: Path) -> float:
    """Return the number of other threads that want to run; 0 where the kernel does not say.

    It is the smaller one of the last minute's average and the number of this moment: the average
    still counts a program that has just ended, and a moment may be a short one.
    """
    try:
        average, _, _, counts, _ = (proc / "loadavg").read_text().split()
        return min(float(average), float(counts.partition("/")[0]) - 1)
    except (OSError, ValueError):
        return 0.0


def _quotas(proc: Path, groups: Path) -> Iterator[Fraction]:
    """Yield, in CPUs, the quotas of this process's control group and of those above it."""
    try:
        lines = (proc / "self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if not controllers:  # version 2
            mounts, read = [groups, groups / "unified"], _read_quota_v2
        elif "cpu" in controllers.split(","):
            mounts, read = [groups / controllers, groups / "cpu"], _read_quota_v1
        else:
            continue
        own = Path(path.lstrip("/"))
        # In a container the path may be that of the host, where the mount shows the group itself.
        for mount in mounts:
            for group in (own, *own.parents):
                try:
                    quota, period = read(mount / group)
                except (OSError, ValueError):  # no such file, or no limit
                    continue
                if quota > 0 and period > 0:
                    yield Fraction(quota, period)


def _read_quota_v2(group: Path) -> tuple[int, int]:
    quota, period = (group / "cpu.max").read_text().split()
    return int(quota), int(period)


def _read_quota_v1(group: Path) -> tuple[int, int]:
    quota, period = ((group / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
    return int(quota), int(period)
