"""What a process forbids itself and all that it starts, if no container does.

The processes that it binds cannot undo it. The host chooses the system calls and the files.
"""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import struct
from typing import Iterable, Mapping

# What Landlock calls the ways to use a file.
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 2, 4, 8
_MAKE_CHARACTER_DEVICE, _MAKE_BLOCK_DEVICE = 1 << 6, 1 << 11
_MOVE = 1 << 13  # to another folder
_TRUNCATE, _DEVICE_IOCTL = 1 << 14, 1 << 15
_ALL_OF_FILES = (1 << 16) - 1
_ALL_OF_A_FILE = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _DEVICE_IOCTL
_ALL_OF_TCP = 3  # bind and connect
_ALL_SCOPES = 3  # abstract sockets and signals
_SCOPE_SIGNALS = 2

LIST = _READ_DIR
READ = _EXECUTE | _READ_FILE | _READ_DIR
WRITE = _ALL_OF_FILES & ~(_MAKE_CHARACTER_DEVICE | _MAKE_BLOCK_DEVICE | _DEVICE_IOCTL)
USE_DEVICE = _READ_FILE | _WRITE_FILE | _TRUNCATE

_PR_SET_NO_NEW_PRIVS = 38
_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2
# The same numbers on every machine.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_WHICH_VERSION, _RULE_BENEATH = 1, 1

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


def use_files_only(granted: Mapping[int, Iterable[str]], tcp: bool = False) -> None:
    """Let this process and what it starts use the named files, and nothing else of the system.

    No other file; no TCP; no signals, tracing or abstract sockets beyond this Landlock domain.

    Args:
        granted: Files, and folders with all that is below them, by how they may be used: `LIST`,
            `READ`, `WRITE`, `USE_DEVICE`.
        tcp: Whether TCP is allowed, as the network is the box's own.

    Raises:
        OSError: A file does not exist, or the kernel cannot do this (before 6.12).
    """
    ruleset = _ruleset(_ALL_OF_FILES, 0 if tcp else _ALL_OF_TCP, _ALL_SCOPES)
    try:
        for ways, paths in granted.items():
            for path in paths:
                _allow(ruleset, path, ways)
        _restrict(ruleset)
    finally:
        os.close(ruleset)


def signal_own_processes_only() -> None:
    """Let this process and what it starts signal and trace nothing but themselves.

    They get a Landlock domain of their own.

    Raises:
        OSError: The kernel has no such scopes (before 6.12), or too many domains are nested.
    """
    ruleset = _ruleset(0, 0, _SCOPE_SIGNALS)
    try:
        _restrict(ruleset)
    finally:
        os.close(ruleset)


def write_outside_proc_only() -> None:
    """Forbid this process and what it starts to write files in /proc, and nowhere else.

    A process sets there how soon the kernel kills it when memory runs out.

    Raises:
        OSError: The kernel cannot do this (before 5.19), or the box may not.
    """
    if _syscall(_CREATE_RULESET, 0, 0, _WHICH_VERSION) < 2:  # moving would always be refused
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    ruleset = _ruleset(_WRITE_FILE | _MOVE, 0, 0)
    try:
        for name in os.listdir("/"):
            if name != "proc" and not os.path.islink("/" + name):
                _allow(ruleset, "/" + name, _WRITE_FILE | _MOVE)
        _restrict(ruleset)
    finally:
        os.close(ruleset)


def _ruleset(files: int, tcp: int, scopes: int) -> int:
    attributes = ctypes.create_string_buffer(struct.pack("=QQQ", files, tcp, scopes))
    return _syscall(_CREATE_RULESET, ctypes.addressof(attributes), 24, 0)


def _allow(ruleset: int, path: str, ways: int) -> None:
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            ways &= _ALL_OF_A_FILE
        rule = ctypes.create_string_buffer(struct.pack("=Qi", ways, fd), 12)
        _syscall(_ADD_RULE, ruleset, _RULE_BENEATH, ctypes.addressof(rule), 0)
    finally:
        os.close(fd)


def _restrict(ruleset: int) -> None:
    _prctl(_PR_SET_NO_NEW_PRIVS, 1, 0)
    _syscall(_RESTRICT_SELF, ruleset, 0)


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
