"""The filter refuses what its rules name, and nothing else; read by a small machine of our own."""

import errno
import platform
import struct
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymnast.sandboxes.seccomp_filter import (
    BOX_RULES,
    NO_CHANGE_OF_RIGHTS,
    NO_LOCAL_SOCKETS,
    Deny,
    assemble,
    has_machine,
)

ALLOWED = 0x7FFF0000
X86 = 0xC000003E


def answer(program: bytes, number: int, *arguments: int, architecture: int = X86) -> int:
    """What the kernel would make of a call: classic BPF, as far as the filter uses it."""
    padded = [*arguments, *[0] * (6 - len(arguments))]
    data = struct.pack("=IIQ6Q", number, architecture, 0, *padded)
    steps = list(struct.iter_unpack("=HBBI", program))
    at, value = 0, 0
    while True:
        code, yes, no, operand = steps[at]
        at += 1
        if code == 0x20:
            value = struct.unpack_from("=I", data, operand)[0]
        elif code == 0x06:
            return int(operand)
        else:
            true = {0x15: value == operand, 0x35: value >= operand, 0x45: value & operand}[code]
            at += yes if true else no


def refused(error: int) -> int:
    return 0x00050000 | error


def test_each_kind_of_rule() -> None:
    rules = [
        Deny("ptrace"),
        Deny("clone3", error=errno.ENOSYS),
        Deny("socket", 0, unless=1),
        Deny("ioctl", 1, equal=0x5412),
        Deny("clone", 0, bits=0x10000000),
    ]
    program = assemble(rules, "x86_64")
    assert answer(program, 101) == refused(errno.EPERM)
    assert answer(program, 435) == refused(errno.ENOSYS)
    assert answer(program, 41, 1) == ALLOWED
    assert answer(program, 41, 2) == refused(errno.EPERM)
    assert answer(program, 16, 0, 0x5412) == refused(errno.EPERM)
    assert answer(program, 16, 0, 0x5413) == ALLOWED
    assert answer(program, 56, 0x10000011) == refused(errno.EPERM)
    assert answer(program, 56, 0x11) == ALLOWED


def test_rules_for_boxes_that_see_the_files_of_the_host() -> None:
    program = assemble((*BOX_RULES, *NO_LOCAL_SOCKETS, *NO_CHANGE_OF_RIGHTS), "x86_64")
    no = refused(errno.EPERM)
    assert answer(program, 41, 1, 1) == no
    kinds = {"stream": 1, "datagram": 2, "raw": 3, "packets": 5, "not inherited": 2 | 0o2000000}
    made = {name: answer(program, 53, 1, kind) for name, kind in kinds.items()}
    assert {name for name, said in made.items() if said == ALLOWED} == {"stream", "packets"}
    assert {answer(program, number) for number in (90, 91, 92, 93, 94, 260, 268, 452)} == {no}
    assert answer(program, 280) == ALLOWED  # times


def test_high_bits_of_an_argument_are_no_way_around() -> None:
    program = assemble([Deny("ioctl", 1, equal=0x5412), Deny("socket", 0, unless=1)], "x86_64")
    assert answer(program, 16, 0, 0x5412 | 1 << 32) == refused(errno.EPERM)
    assert answer(program, 41, 2 | 1 << 32) == refused(errno.EPERM)


def test_calls_of_other_abis_are_none() -> None:
    program = assemble(BOX_RULES, "x86_64")
    assert answer(program, 20, architecture=0x40000003) == 0x80000000  # i386: kill the process
    assert answer(program, 0x40000000 | 1) == refused(errno.ENOSYS)  # x32


@given(st.integers(0, 500), st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
def test_what_no_rule_names_is_allowed(number: int, first: int, second: int) -> None:
    program = assemble([Deny("ptrace"), Deny("socket", 0, unless=1)], "x86_64")
    if number == 101 or (number == 41 and first & 0xFFFFFFFF != 1):
        assert answer(program, number, first, second) == refused(errno.EPERM)
    else:
        assert answer(program, number, first, second) == ALLOWED


def test_machines_have_numbers_of_their_own() -> None:
    program = assemble(BOX_RULES, "aarch64")
    assert answer(program, 117, architecture=0xC00000B7) == refused(errno.EPERM)
    assert answer(program, 101, architecture=0xC00000B7) == ALLOWED
    with pytest.raises(KeyError):
        assemble(BOX_RULES, "s390x")


@pytest.mark.skipif(sys.platform != "linux", reason="seccomp is Linux's")
def test_the_kernel_takes_it() -> None:
    if not has_machine(platform.machine()):
        pytest.skip(f"no numbers for {platform.machine()}")
    program = (
        "import os, socket, sys\n"
        "from gymnast.sandboxes.guest.confine import refuse_calls\n"
        "from gymnast.sandboxes.seccomp_filter import BOX_RULES, assemble\n"
        "refuse_calls(assemble(BOX_RULES, sys.argv[1]))\n"
        "socket.socketpair()\n"
        "try: socket.socket()\n"
        "except PermissionError: print('refused')\n"
    )
    shown = subprocess.run(
        [sys.executable, "-c", program, platform.machine()], capture_output=True, text=True
    )
    assert (shown.stdout, shown.returncode) == ("refused\n", 0), shown.stderr
