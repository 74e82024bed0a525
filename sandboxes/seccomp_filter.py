"""A deny-list of system calls as a program for the kernel (seccomp's classic BPF).

For boxes without an engine that would take `seccomp.json`. Where a call is refused only with
certain arguments, the lower 32 bits are looked at: the kernel, too, takes no more of a process id,
a flag word or a socket family. Left out: how the program is loaded (`guest/confine.py`), and other
machines than x86-64 and 64-bit ARM.
"""

import errno
import struct
from collections.abc import Iterable
from dataclasses import dataclass

_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERRNO, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16  # offsets in what the kernel shows the program
_X32 = 0x40000000  # another set of numbers for the same calls

# The kernel's names of machines: its number for them, and which column of `_NUMBERS` they use.
_MACHINES = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}


@dataclass(frozen=True)
class Deny:
    """A call that is refused.

    Attributes:
        name: Of the system call.
        argument: Which argument to look at, from 0 on; None: refused whatever they are.
        equal: Refused where the argument is this.
        unless: Refused where the argument is not this.
        bits: Refused where the argument has any of these bits.
        error: What the caller is told.
    """

    name: str
    argument: int | None = None
    equal: int | None = None
    unless: int | None = None
    bits: int | None = None
    error: int = errno.EPERM


def assemble(rules: Iterable[Deny], machine: str) -> bytes:
    """The program: all calls are allowed but those of the rules; foreign ABIs end the process.

    Args:
        rules: A call is refused when any of them fits.
        machine: "x86_64" or "aarch64", as `platform.machine()` says it.

    Raises:
        KeyError: An unknown machine or call.
    """
    architecture, column = _MACHINES[machine]
    program = [
        _step(_LOAD, _ARCHITECTURE),
        _step(_JUMP_EQUAL, architecture, yes=1),
        _step(_RETURN, _KILL),
        _step(_LOAD, _NUMBER),
    ]
    if machine == "x86_64":
        program += [_step(_JUMP_AT_LEAST, _X32, no=1), _step(_RETURN, _ERRNO | errno.ENOSYS)]
    for rule in rules:
        number = _NUMBERS[rule.name][column]
        if number is not None:
            program += _refuse(rule, number)
    return b"".join([*program, _step(_RETURN, _ALLOW)])


def has_machine(machine: str) -> bool:
    """Whether `assemble` knows the machine."""
    return machine in _MACHINES


def _refuse(rule: Deny, number: int) -> list[bytes]:
    refusal = _step(_RETURN, _ERRNO | rule.error)
    if rule.argument is None:
        return [_step(_JUMP_EQUAL, number, no=1), refusal]
    if rule.equal is not None:
        test = _step(_JUMP_EQUAL, rule.equal, no=1)
    elif rule.bits is not None:
        test = _step(_JUMP_ANY_BIT, rule.bits, no=1)
    else:
        test = _step(_JUMP_EQUAL, rule.unless or 0, yes=1)
    load = _step(_LOAD, _ARGUMENTS + 8 * rule.argument)
    # The number is loaded again for the rules that follow.
    return [_step(_JUMP_EQUAL, number, no=4), load, test, refusal, _step(_LOAD, _NUMBER)]


def _step(code: int, value: int, *, yes: int = 0, no: int = 0) -> bytes:
    return struct.pack("=HBBI", code, yes, no, value)


# Numbers on x86-64 and on 64-bit ARM; None: it has no such call.
_NUMBERS: dict[str, tuple[int, int | None]] = {
    "acct": (163, 89),
    "add_key": (248, 217),
    "bpf": (321, 280),
    "chmod": (90, None),
    "chown": (92, None),
    "chroot": (161, 51),
    "clone": (56, 220),
    "clone3": (435, 435),
    "delete_module": (176, 106),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "fchown": (93, 55),
    "fchownat": (260, 54),
    "finit_module": (313, 273),
    "fremovexattr": (199, 16),
    "fsconfig": (431, 431),
    "fsetxattr": (190, 7),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "init_module": (175, 105),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "ioctl": (16, 29),
    "ioperm": (173, None),
    "iopl": (172, None),
    "ioprio_set": (251, 30),
    "kcmp": (312, 272),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "lchown": (94, None),
    "lremovexattr": (198, 15),
    "lsetxattr": (189, 6),
    "migrate_pages": (256, 238),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "move_pages": (279, 239),
    "mq_open": (240, 180),
    "mq_unlink": (241, 181),
    "msgctl": (71, 187),
    "msgget": (68, 186),
    "msgrcv": (70, 188),
    "msgsnd": (69, 189),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "perf_event_open": (298, 241),
    "personality": (135, 92),
    "pidfd_getfd": (438, 438),
    "pivot_root": (155, 41),
    "prlimit64": (302, 261),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "quotactl": (179, 60),
    "reboot": (169, 142),
    "removexattr": (197, 14),
    "removexattrat": (466, 466),
    "request_key": (249, 218),
    "sched_setaffinity": (203, 122),
    "sched_setattr": (314, 274),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "semctl": (66, 191),
    "semget": (64, 190),
    "semop": (65, 193),
    "semtimedop": (220, 192),
    "setdomainname": (171, 162),
    "sethostname": (170, 161),
    "setns": (308, 268),
    "setpriority": (141, 140),
    "setxattr": (188, 5),
    "setxattrat": (463, 463),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "shmget": (29, 194),
    "socket": (41, 198),
    "socketpair": (53, 199),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
}

_AF_UNIX = 1
_DATAGRAM_BIT = 2  # in SOCK_DGRAM and SOCK_RAW, not in SOCK_STREAM and SOCK_SEQPACKET
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
_NAMESPACES = 0x7E020080  # CLONE_NEW*, all eight
_NEVER = (
    "acct add_key bpf chroot delete_module finit_module fsconfig fsmount fsopen fspick "
    "init_module io_uring_enter io_uring_register io_uring_setup ioperm iopl kcmp "
    "kexec_file_load kexec_load keyctl migrate_pages mount mount_setattr move_mount move_pages "
    "mq_open mq_unlink msgctl msgget msgrcv msgsnd name_to_handle_at open_by_handle_at "
    "open_tree perf_event_open personality pidfd_getfd pivot_root process_madvise "
    "process_mrelease process_vm_readv process_vm_writev ptrace quotactl reboot request_key "
    "sched_setaffinity semctl semget semop semtimedop setdomainname sethostname setns shmat "
    "shmctl shmget swapoff swapon syslog umount2 unshare userfaultfd"
)

# What code in a box has no use for, or could reach out of it with: other processes of the same
# user are named by an id that must be 0, which is the caller itself.
BOX_RULES: tuple[Deny, ...] = (
    *(Deny(name) for name in _NEVER.split()),
    Deny("clone3", error=errno.ENOSYS),  # libraries fall back to clone, whose flags can be seen
    Deny("clone", 0, bits=_NAMESPACES & ~0xFF),  # the lowest byte is a signal's number there
    Deny("socket", 0, unless=_AF_UNIX),
    Deny("socketpair", 0, unless=_AF_UNIX),
    Deny("ioctl", 1, equal=_TIOCSTI),
    Deny("ioctl", 1, equal=_TIOCLINUX),
    Deny("prlimit64", 0, unless=0),
    Deny("sched_setattr", 0, unless=0),
    Deny("sched_setparam", 0, unless=0),
    Deny("sched_setscheduler", 0, unless=0),
    Deny("setpriority", 0, unless=0),  # a process group's, or all of a user's
    Deny("setpriority", 1, unless=0),
    Deny("ioprio_set", 0, unless=1),
    Deny("ioprio_set", 1, unless=0),
)

# For a box that sees the host's files: Landlock grants or refuses files, and local sockets are
# none for it. A pair of datagram sockets could be connected to others later on.
NO_LOCAL_SOCKETS: tuple[Deny, ...] = (Deny("socket"), Deny("socketpair", 1, bits=_DATAGRAM_BIT))

_RIGHTS = (
    "chmod chown fchmod fchmodat fchmodat2 fchown fchownat fremovexattr fsetxattr lchown "
    "lremovexattr lsetxattr removexattr removexattrat setxattr setxattrat"
)

# Where, besides, the host's files belong to the box's user: Landlock does not keep an owner from
# changing their rights. Their times can be changed: refusing that would break `touch`.
NO_CHANGE_OF_RIGHTS: tuple[Deny, ...] = tuple(Deny(name) for name in _RIGHTS.split())
