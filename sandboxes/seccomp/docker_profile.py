"""Which system calls a box may make, as a seccomp profile for a container engine."""

import errno
import itertools
import json
from collections.abc import Iterable, Iterator
from typing import Any

from gymnast.sandboxes.seccomp.bpf_filter import Check, Rule, Rules
from gymnast.sandboxes.seccomp.system_calls import ABSENT

_WORD = 0xFFFFFFFF  # of an argument the lower 32 bits are looked at, as by `seccomp_filter`


def profile(rules: Rules) -> str:
    """The profile: the same rules as `assemble` makes a program of, on the same machines.

    Calls that are absent are named to get their ENOSYS; runc gives it to all numbers above those
    that are named.

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
    """A rule as entries, of which one must hold."""
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
    """Patterns (a mask, and what it leaves) that all words but the given ones match."""
    left = list(values)
    if not left:
        yield mask, start
    elif bit:
        for half in (0, bit):
            inside = [value for value in left if value & bit == half]
            yield from _all_but(inside, mask | bit, start | half, bit >> 1)
