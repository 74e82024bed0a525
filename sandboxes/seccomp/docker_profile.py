"""Which system calls a box may make, as a seccomp profile for a container engine."""

import errno
import itertools
import json
from collections.abc import Iterable, Iterator
from typing import Any

from gymnast.sandboxes.seccomp.bpf_filter import Check, Rule, Rules
from gymnast.sandboxes.seccomp.system_calls import ABSENT

_WORD = 0xFFFFFFFF  # the lower 32 bits of an argument are checked, as in `bpf_filter.py`


def profile(rules: Rules) -> str:
    """The profile with the rules that `assemble` makes a program of, for the same machines.

    Absent calls are named to be answered with ENOSYS; runc answers all numbers above the named ones
    with it.

    Args:
        rules: The calls by their names.
    """
    names: dict[Rule, list[str]] = {errno.ENOSYS: sorted(ABSENT)}
    for name, rule in rules.items():
        names.setdefault(rule, []).append(name)
    content = {
        "defaultAction": "SCMP_ACT_ERRNO",
        "defaultErrnoRet": errno.EPERM,  # of calls whose arguments no entry fits
        "archMap": [
            {"architecture": f"SCMP_ARCH_{machine}", "subArchitectures": []}
            for machine in ("X86_64", "AARCH64")
        ],
        "syscalls": [entry for rule, named in names.items() for entry in _entries(named, rule)],
    }
    return json.dumps(content)


def _entries(names: list[str], rule: Rule) -> Iterator[dict[str, Any]]:
    """The entries of a rule, one of which must hold."""
    if isinstance(rule, int):
        yield {"names": names, "action": "SCMP_ACT_ERRNO", "errnoRet": rule, "args": []}
        return
    for choice in itertools.product(*(_alternatives(check) for check in rule)):
        yield {"names": names, "action": "SCMP_ACT_ALLOW", "args": list(choice)}


def _alternatives(check: Check) -> Iterator[dict[str, Any]]:
    if check.no_bits:
        patterns: Iterable[tuple[int, int]] = [(check.no_bits, 0)]
    elif check.one_of:
        patterns = [(_WORD, value) for value in check.one_of]
    else:
        patterns = _all_but(check.none_of)
    for mask, value in patterns:
        # "Equal" and "not equal" would look at 64 bits.
        operation = {"op": "SCMP_CMP_MASKED_EQ", "value": mask, "valueTwo": value}
        yield {"index": check.argument, **operation}


def _all_but(
    values: Iterable[int], mask: int = 0, start: int = 0, bit: int = 1 << 31
) -> Iterator[tuple[int, int]]:
    """Patterns (a mask, and the bits under it) that match all words but the given ones."""
    left = list(values)
    if not left:
        yield mask, start
    elif bit:
        for half in (0, bit):
            inside = [value for value in left if value & bit == half]
            yield from _all_but(inside, mask | bit, start | half, bit >> 1)
