"""What a worker forbids itself and what it starts, where no container does it for them.

Nothing of it can be undone by whoever it holds. Left out: which calls are refused (the host sends
the filter), and limits.
"""

from __future__ import annotations

import ctypes
import os
import struct

_PR_SET_NO_NEW_PRIVS = 38
_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2
# The same numbers on every machine.
_LANDLOCK_CREATE_RULESET, _LANDLOCK_RESTRICT_SELF = 444, 446
_SCOPE_SIGNALS = 2

_LIBC = ctypes.CDLL(None, use_errno=True)


def refuse_calls(program: bytes) -> None:
    """Load a seccomp filter.

    Args:
        program: Instructions of classic BPF, 8 bytes each.

    Raises:
        OSError: The kernel does not take it.
    """
    instructions = ctypes.create_string_buffer(program, len(program))
    header = ctypes.create_string_buffer(
        struct.pack("@HP", len(program) // 8, ctypes.addressof(instructions))
    )
    _prctl(_PR_SET_NO_NEW_PRIVS, 1, 0)
    _prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.addressof(header))


def signal_own_processes_only() -> None:
    """Let this process, and what it starts, reach neither its parent nor what that has started.

    In a Landlock domain of its own it can signal, trace and look into nothing outside.

    Raises:
        OSError: The kernel has no such scopes (before 6.12), or too many domains are nested.
    """
    attributes = ctypes.create_string_buffer(struct.pack("=QQQ", 0, 0, _SCOPE_SIGNALS))
    ruleset = _syscall(_LANDLOCK_CREATE_RULESET, ctypes.addressof(attributes), 24, 0)
    try:
        _syscall(_LANDLOCK_RESTRICT_SELF, ruleset, 0)
    finally:
        os.close(ruleset)


def _prctl(option: int, first: int, second: int) -> None:
    arguments = [ctypes.c_ulong(value) for value in (first, second, 0, 0)]
    if _LIBC.prctl(option, *arguments) != 0:
        _fail("prctl(%d)" % option)


def _syscall(number: int, *arguments: int) -> int:
    result = _LIBC.syscall(ctypes.c_long(number), *[ctypes.c_long(value) for value in arguments])
    if result < 0:
        _fail("system call %d" % number)
    return int(result)


def _fail(what: str) -> None:
    number = ctypes.get_errno()
    raise OSError(number, "%s: %s" % (what, os.strerror(number)))
