"""The filter allows what its rules name, and nothing else; read by a small machine of our own."""

import errno
import itertools
import json
import platform
import re
import struct
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gymnast.sandboxes.contract.spec import Network
from gymnast.sandboxes.seccomp.bpf_filter import (
    BOX_CALLS,
    NETWORK_CALLS,
    NO_CHANGE_OF_RIGHTS,
    NO_LOCAL_SOCKETS,
    Check,
    Rule,
    Rules,
    assemble,
    has_machine,
    number,
)
from gymnast.sandboxes.seccomp.docker_profile import profile
from gymnast.sandboxes.seccomp.system_calls import ABSENT, ALLOWED, REFUSED

ALLOW = 0x7FFF0000
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
HEADER = Path(f"/usr/include/{platform.machine()}-linux-gnu/asm/unistd_64.h")
WORD = 0xFFFFFFFF
KERNELS_OWN = {335, 336}  # uretprobe and uprobe: no filter is asked


def run(program: bytes, called: int, arguments: tuple[int, ...], architecture: int) -> list[int]:
    """What the kernel would make of a call, and in how many steps: classic BPF."""
    padded = [*arguments, *[0] * (6 - len(arguments))]
    data = struct.pack("=IIQ6Q", called, architecture, 0, *padded)
    steps = list(struct.iter_unpack("=HBBI", program))
    at = value = taken = 0
    while True:
        code, yes, no, operand = steps[at]
        at, taken = at + 1, taken + 1
        if code == 0x20:
            value = struct.unpack_from("=I", data, operand)[0]
        elif code == 0x05:
            at += operand
        elif code == 0x06:
            return [int(operand), taken]
        else:
            true = {0x15: value == operand, 0x35: value >= operand, 0x45: value & operand}[code]
            at += yes if true else no


def answer(program: bytes, called: int, *arguments: int, machine: str = "x86_64") -> int:
    return run(program, called, arguments, ARCHITECTURES[machine])[0]


def refused(error: int = errno.EPERM) -> int:
    return 0x00050000 | error


def expected(rule: Rule, arguments: tuple[int, ...]) -> int:
    """What a rule says, read anew."""
    if isinstance(rule, int):
        return refused(rule)
    for check in rule:
        argument = arguments[check.argument] & WORD
        if check.one_of and argument not in check.one_of:
            return refused()
        if argument in check.none_of or argument & check.no_bits:
            return refused()
    return ALLOW


PROFILE = json.loads(profile(BOX_CALLS))
PROGRAMS = {machine: assemble(BOX_CALLS, machine) for machine in ARCHITECTURES}


def of_profile(name: str, arguments: tuple[int, ...]) -> int:
    """What an engine makes of a call: the entry whose conditions hold, or the default."""
    operations = {"SCMP_CMP_MASKED_EQ": lambda a, mask, value: a & mask == value}
    for entry in PROFILE["syscalls"]:
        if name in entry["names"] and all(
            operations[arg["op"]](arguments[arg["index"]], arg["value"], arg["valueTwo"])
            for arg in entry["args"]
        ):
            return {"SCMP_ACT_ALLOW": ALLOW, "SCMP_ACT_ERRNO": refused(entry.get("errnoRet", 0))}[
                entry["action"]
            ]
    return refused(PROFILE["defaultErrnoRet"])


def test_each_kind_of_rule() -> None:
    rules: dict[str, Rule] = {
        "read": (),
        "ptrace": errno.EPERM,
        "socket": (Check(0, one_of=(1, 3)),),
        "ioctl": (Check(1, none_of=(0x5412, 0x541C)),),
        "clone": (Check(0, no_bits=0x10000000),),
        "setpriority": (Check(0, one_of=(0,)), Check(1, one_of=(0,))),
    }
    program = assemble(rules, "x86_64")
    assert answer(program, 0) == ALLOW
    assert answer(program, 1) == refused(errno.ENOSYS)
    assert answer(program, 101) == refused()
    assert [answer(program, 41, family) for family in (1, 2, 3)] == [ALLOW, refused(), ALLOW]
    asked = (0x5411, 0x5412, 0x5413, 0x541C)
    assert [answer(program, 16, 0, what) for what in asked] == [ALLOW, refused(), ALLOW, refused()]
    assert answer(program, 56, 0x10000011) == refused()
    assert answer(program, 56, 0x11) == ALLOW
    assert [answer(program, 141, *who) for who in ((0, 0), (0, 1), (1, 0))] == [
        ALLOW,
        refused(),
        refused(),
    ]


def test_rules_for_boxes_that_see_the_files_of_the_host() -> None:
    program = assemble({**BOX_CALLS, **NO_LOCAL_SOCKETS, **NO_CHANGE_OF_RIGHTS}, "x86_64")
    assert answer(program, 41, 1, 1) == refused()
    kinds = {"stream": 1, "datagram": 2, "raw": 3, "packets": 5, "not inherited": 2 | 0o2000000}
    made = {name: answer(program, 53, 1, kind) for name, kind in kinds.items()}
    assert {name for name, said in made.items() if said == ALLOW} == {"stream", "packets"}
    assert {answer(program, n) for n in (90, 91, 92, 93, 94, 260, 268, 452)} == {refused()}
    assert answer(program, 280) == ALLOW  # times


@pytest.mark.parametrize(
    "network, families", {"none": {1}, "endpoint": {1, 2}, "full": {1, 2, 10}}.items()
)
def test_the_sockets_of_a_network(network: Network, families: set[int]) -> None:
    program = assemble({**BOX_CALLS, **NETWORK_CALLS[network]}, "x86_64")
    made = {
        asked
        for asked in itertools.product(range(50), (1, 2, 5, 6), (0, 6, 17, 33, 132, 136, 262))
        if answer(program, 41, asked[0], asked[1] | 0o2004000, asked[2]) == ALLOW
    }
    assert {family for family, _, _ in made} == families
    if network != "none":
        assert {kind for _, kind, _ in made} == {1, 2}  # not SCTP, nor DCCP
        assert {protocol for _, _, protocol in made} == {0, 6, 17}


def test_high_bits_of_an_argument_are_no_way_around() -> None:
    program = assemble(BOX_CALLS, "x86_64")
    assert answer(program, 16, 0, 0x5412 | 1 << 32) == refused()
    assert answer(program, 41, 2 | 1 << 32) == refused()
    assert answer(program, 72, 0, 1026 | 1 << 40) == refused()


def test_calls_of_other_abis_are_none() -> None:
    program = assemble(BOX_CALLS, "x86_64")
    assert run(program, 20, (), 0x40000003)[0] == 0x80000000  # i386: kill the process
    assert answer(program, 0x40000000 | 1) == refused(errno.ENOSYS)  # x32


SOME_VALUES = st.sets(st.integers(0, 9), min_size=1).map(tuple)
SOME_RULES = st.one_of(
    st.just(()),
    st.sampled_from([errno.EPERM, errno.EAFNOSUPPORT]),
    st.builds(lambda values: (Check(0, one_of=values),), SOME_VALUES),
    st.builds(lambda values: (Check(1, none_of=values),), SOME_VALUES),
    st.builds(
        lambda bits, values: (Check(0, no_bits=bits), Check(1, one_of=values)),
        st.integers(1, 9),
        SOME_VALUES,
    ),
)
SOME_CALLS = st.dictionaries(st.sampled_from(sorted(ALLOWED)), SOME_RULES)
SOME_ARGUMENT = st.integers(0, 9) | st.integers(0, 2**64 - 1)
ARGUMENTS = st.tuples(*[SOME_ARGUMENT] * 6)
CHECKED = sorted(name for name, rule in BOX_CALLS.items() if isinstance(rule, tuple) and rule)
ANY_CALL = st.sampled_from(CHECKED) | st.sampled_from(sorted(BOX_CALLS))


@given(SOME_CALLS, st.sampled_from(sorted(ARCHITECTURES)), st.data())
def test_a_call_is_answered_as_its_rule_says(
    rules: Mapping[str, Rule], machine: str, data: st.DataObject
) -> None:
    program = assemble(rules, machine)
    numbers = {number(name, machine): rule for name, rule in rules.items()}
    arguments = data.draw(ARGUMENTS)
    for called in range(500):
        rule = numbers.get(called, errno.ENOSYS)
        assert answer(program, called, *arguments, machine=machine) == expected(rule, arguments)


@given(ANY_CALL, st.sampled_from(sorted(ARCHITECTURES)), ARGUMENTS)
def test_the_program_and_the_profile_say_the_same(
    name: str, machine: str, arguments: tuple[int, ...]
) -> None:
    told = expected(BOX_CALLS[name], arguments)
    assert of_profile(name, arguments) == told
    called = number(name, machine)
    if called is not None:
        assert answer(PROGRAMS[machine], called, *arguments, machine=machine) == told


@pytest.mark.parametrize("name, position", [("ioctl", 1), ("fcntl", 1), ("personality", 0)])
def test_the_profile_around_the_values_that_matter(name: str, position: int) -> None:
    near = (0, 1, 3, 1023, *range(1024, 1040), 0x5401, *range(0x5410, 0x5420), 0x20000, WORD)
    for value in (*near, *(value | 1 << 32 for value in near)):
        arguments = (0,) * position + (value, 0)
        assert of_profile(name, arguments) == expected(BOX_CALLS[name], arguments), hex(value)


def test_calls_that_are_absent_are_not_there_for_an_engine_either() -> None:
    assert {of_profile(name, (0, 0)) for name in ABSENT} == {refused(errno.ENOSYS)}


@pytest.mark.parametrize("machine", sorted(ARCHITECTURES))
def test_no_call_takes_many_steps(machine: str) -> None:
    program = assemble(BOX_CALLS, machine)
    assert max(run(program, n, (), ARCHITECTURES[machine])[1] for n in range(600)) <= 24
    assert len(program) // 8 < 4096  # the kernel's limit


def test_every_call_of_the_kernel_has_its_place() -> None:
    assert not set(ALLOWED) & set(REFUSED) and not (set(ALLOWED) | set(REFUSED)) & ABSENT
    for column in (0, 1):
        known = [numbers[column] for numbers in (ALLOWED | REFUSED).values()]
        found = [called for called in known if called is not None]
        assert len(found) == len(set(found))
    assert set(BOX_CALLS) == set(ALLOWED) | set(REFUSED)


def test_numbers_are_those_of_the_kernels_headers() -> None:
    if not HEADER.exists():
        pytest.skip(f"there is no {HEADER}")
    defined = re.findall(r"^#define __NR_(\w+) (\d+)$", HEADER.read_text(), re.MULTILINE)
    known = {name: number(name, platform.machine()) for name in ALLOWED | REFUSED}
    assert defined
    for name, called in defined:
        assert name in ABSENT or known[name] == int(called), name


def test_machines_have_numbers_of_their_own() -> None:
    program = assemble(BOX_CALLS, "aarch64")
    assert answer(program, 117, machine="aarch64") == refused()
    assert answer(program, 101, machine="aarch64") == ALLOW
    with pytest.raises(KeyError):
        assemble(BOX_CALLS, "s390x")


# Loads a filter, then makes every call that it says it refuses; says which it did not.
PROBE = """
import ctypes, json, os, socket, sys
from gymnast.sandboxes.guest.confine import refuse_calls
refused = json.loads(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
refuse_calls(bytes.fromhex(sys.argv[2]))
socket.socketpair()
reached = []
for number, error in refused:
    ctypes.set_errno(0)
    if (libc.syscall(number, 0, 0, 0, 0, 0, 0), ctypes.get_errno()) != (-1, error):
        reached.append(number)
print(reached, os.getppid() > 0)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="seccomp is Linux's")
@pytest.mark.parametrize(
    "more", [{}, NO_LOCAL_SOCKETS, {**NO_LOCAL_SOCKETS, **NO_CHANGE_OF_RIGHTS}]
)
def test_the_kernel_takes_it(more: Rules) -> None:
    machine = platform.machine()
    if not has_machine(machine):
        pytest.skip(f"no numbers for {machine}")
    rules = {**BOX_CALLS, **more}
    numbers = {number(name, machine): rule for name, rule in rules.items()}
    told = {n: numbers.get(n, errno.ENOSYS) for n in range(600) if n not in KERNELS_OWN}
    refused = [[n, rule] for n, rule in told.items() if isinstance(rule, int)]
    arguments = [json.dumps(refused), assemble(rules, machine).hex()]
    shown = subprocess.run(
        [sys.executable, "-c", PROBE, *arguments], capture_output=True, text=True
    )
    assert (shown.stdout, shown.returncode) == ("[] True\n", 0), shown.stderr
