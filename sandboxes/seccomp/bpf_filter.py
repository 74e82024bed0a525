"""Which system calls a box may make, as a program for the kernel (seccomp's classic BPF).

A call that is not named does not exist: ENOSYS. If a call is allowed only with certain arguments,
their lower 32 bits are checked: the kernel, too, reads no more of a process id, a flag word or a
socket family. The calls and their numbers are in `system_calls.py`; `docker_profile.py` writes the
same rules for a container engine, and `guest/confine.py` loads the program. The machines are x86-64
and 64-bit ARM.
"""

import errno
import struct
from collections.abc import Mapping
from dataclasses import dataclass

from gymnast.sandboxes.seccomp.system_calls import ALLOWED, REFUSED

_LOAD, _JUMP, _RETURN = 0x20, 0x05, 0x06
_JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_ANY_BIT = 0x15, 0x35, 0x45
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16  # offsets in what the kernel shows the program
_FARTHEST = 255  # steps that a jump on a condition can skip

# The kernel's names of machines: its number for them, and which column of the table they use.
_MACHINES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}


@dataclass(frozen=True)
class Check:
    """A rule for an argument of a call, which is refused with EPERM if the rule is broken.

    One of the last three attributes is set.

    Attributes:
        argument: Which argument, from 0 on.
        one_of: It must be one of these.
        none_of: It must be none of these.
        no_bits: It must have none of these bits.
    """

    argument: int
    one_of: tuple[int, ...] = ()
    none_of: tuple[int, ...] = ()
    no_bits: int = 0


# The checks that must all hold, or the error of a call that is refused whatever its arguments.
Rule = tuple[Check, ...] | int
Rules = Mapping[str, Rule]

_REFUSED = errno.EPERM
_AF_UNIX, _AF_INET, _AF_INET6 = 1, 2, 10
_USUAL, _TCP, _UDP = 0, 6, 17
_DATAGRAM_BIT = 2  # in SOCK_DGRAM and SOCK_RAW, not in SOCK_STREAM and SOCK_SEQPACKET
_RARE_BIT = 4  # in SOCK_SEQPACKET and SOCK_DCCP, which name SCTP and DCCP without their numbers
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
_F_SETLEASE, _F_NOTIFY = 1024, 1026
_MAP_HUGETLB, _MFD_HUGETLB = 0x40000, 4  # pages that an administrator keeps for others
_NAMESPACES = 0x7E020000  # CLONE_NEW*, as far as the flags are not a signal's number
_LINUX, _UNAME26, _ASK = 0, 0x20000, 0xFFFFFFFF
_ITSELF = (Check(0, one_of=(0,)),)  # other processes of the same user have ids that are not 0

# What code in a box may call.
BOX_CALLS: Rules = {
    **dict.fromkeys(ALLOWED, ()),
    **dict.fromkeys(REFUSED, _REFUSED),
    # Access control lists take memory of the kernel that no control group counts. `cp -p` sets
    # one, and goes without where the file system has none.
    **dict.fromkeys(("fsetxattr", "lsetxattr", "setxattr"), errno.EOPNOTSUPP),
    "clone": (Check(0, no_bits=_NAMESPACES),),  # clone3's flags cannot be seen: it is absent
    "fcntl": (Check(1, none_of=(_F_SETLEASE, _F_NOTIFY)),),
    "ioctl": (Check(1, none_of=(_TIOCSTI, _TIOCLINUX)),),
    "ioprio_set": (Check(0, one_of=(1,)), Check(1, one_of=(0,))),
    "memfd_create": (Check(1, no_bits=_MFD_HUGETLB),),
    "mmap": (Check(3, no_bits=_MAP_HUGETLB),),
    "personality": (Check(0, one_of=(_LINUX, _UNAME26, _ASK)),),
    "prlimit64": _ITSELF,
    "sched_setattr": _ITSELF,
    "sched_setparam": _ITSELF,
    "sched_setscheduler": _ITSELF,
    "setpriority": (*_ITSELF, Check(1, one_of=(0,))),  # not a group's, nor all of a user's
    "socket": (Check(0, one_of=(_AF_UNIX,)),),
    "socketpair": (Check(0, one_of=(_AF_UNIX,)),),
}

# For a box that has a loopback of its own to use, or a network: TCP and UDP beside local sockets
# (but pairs alone of SOCK_SEQPACKET), and no other protocol of the internet.
_TCP_OR_UDP = (Check(1, no_bits=_RARE_BIT), Check(2, one_of=(_USUAL, _TCP, _UDP)))
_LOOPBACK: Rules = {"socket": (Check(0, one_of=(_AF_UNIX, _AF_INET)), *_TCP_OR_UDP)}
_INTERNET: Rules = {"socket": (Check(0, one_of=(_AF_UNIX, _AF_INET, _AF_INET6)), *_TCP_OR_UDP)}
# What replaces rules of `BOX_CALLS`, by a spec's `network`.
NETWORK_CALLS: Mapping[str, Rules] = {"none": {}, "endpoint": _LOOPBACK, "full": _INTERNET}

# For a box that sees the host's files: to Landlock, which grants or refuses files, local sockets
# are none. A pair of datagram sockets could be connected to others later on.
NO_LOCAL_SOCKETS: Rules = {
    "socket": _REFUSED,
    "socketpair": (Check(0, one_of=(_AF_UNIX,)), Check(1, no_bits=_DATAGRAM_BIT)),
}

_ATTRIBUTES = "fgetxattr flistxattr getxattr lgetxattr listxattr llistxattr"

# For such a box too: Landlock lets everyone read the extended attributes of files that may not be
# opened. The calls answer as on a file system that has none.
NO_ATTRIBUTES: Rules = dict.fromkeys(_ATTRIBUTES.split(), errno.EOPNOTSUPP)

_RIGHTS = (
    "chmod chown fchmod fchmodat fchmodat2 fchown fchownat fremovexattr fsetxattr lchown "
    "lremovexattr lsetxattr removexattr setxattr"
)

# If, besides, the host's files belong to the box's user: Landlock lets an owner change their
# rights. Their times can still be changed: refusing that would break `touch`.
NO_CHANGE_OF_RIGHTS: Rules = dict.fromkeys(_RIGHTS.split(), _REFUSED)


def assemble(rules: Rules, machine: str) -> bytes:
    """The program: it answers the named calls by their rules, and all others with ENOSYS.

    A call of a foreign ABI ends the process. A binary search finds the number in about eight steps;
    kernels from 5.11 on skip them for a call that is allowed whatever its arguments.

    Args:
        rules: The calls by their names.
        machine: "x86_64" or "aarch64", as `platform.machine()` names it.

    Raises:
        KeyError: An unknown machine or call.
    """
    architecture, column = _MACHINES[machine]
    numbers = {(ALLOWED | REFUSED)[name][column]: rule for name, rule in rules.items()}
    absent = _block(errno.ENOSYS)
    blocks = [(0, absent)]  # each holds from its number up to the next one's
    for called in sorted(called for called in numbers if called is not None):
        for first, block in ((called, _block(numbers[called])), (called + 1, absent)):
            if blocks[-1][0] == first:
                blocks.pop()
            if not blocks or blocks[-1][1] != block:
                blocks.append((first, block))
    start = [
        _step(_LOAD, _ARCHITECTURE),
        _step(_JUMP_EQUAL, architecture, yes=1),
        _step(_RETURN, _KILL),
        _step(_LOAD, _NUMBER),
    ]
    return b"".join(start + _search(blocks))


def has_machine(machine: str) -> bool:
    """Whether `assemble` can make a program for the machine."""
    return machine in _MACHINES


def number(name: str, machine: str) -> int | None:
    """The number of an allowed or refused call; None if the machine has no such call."""
    return (ALLOWED | REFUSED)[name][_MACHINES[machine][1]]


def _search(blocks: list[tuple[int, list[bytes]]]) -> list[bytes]:
    if len(blocks) == 1:
        return blocks[0][1]
    middle = len(blocks) // 2
    first = blocks[middle][0]
    below, above = _search(blocks[:middle]), _search(blocks[middle:])
    if len(below) <= _FARTHEST:
        return [_step(_JUMP_AT_LEAST, first, yes=len(below)), *below, *above]
    return [_step(_JUMP_AT_LEAST, first, no=1), _step(_JUMP, len(below)), *below, *above]


def _block(rule: Rule) -> list[bytes]:
    """The steps that answer a call once its number is known."""
    if isinstance(rule, int):
        return [_step(_RETURN, _ERRNO | rule)]
    refusal = _step(_RETURN, _ERRNO | _REFUSED)
    steps = []
    for check in rule:
        steps += [_step(_LOAD, _ARGUMENTS + 8 * check.argument), *_test(check), refusal]
    return [*steps, _step(_RETURN, _ALLOW)]


def _test(check: Check) -> list[bytes]:
    """Jumps over the next step, the refusal, if the check holds."""
    if check.no_bits:
        return [_step(_JUMP_ANY_BIT, check.no_bits, no=1)]
    values = check.one_of or check.none_of
    left = range(len(values) - 1, -1, -1)  # tests that follow each
    if check.one_of:
        return [_step(_JUMP_EQUAL, value, yes=n + 1) for n, value in zip(left, values, strict=True)]
    return [
        _step(_JUMP_EQUAL, value, yes=n, no=int(n == 0))
        for n, value in zip(left, values, strict=True)
    ]


def _step(code: int, value: int, *, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("=HBBI", code, yes, no, value)
