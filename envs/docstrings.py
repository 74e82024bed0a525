"""Reading a Google-style docstring: what a function does, and what each argument is.

Only the summary and the `Args:` section are read; the other sections are left out of a tool's
description, since a policy never sees what a call returns before it has made it.
"""

import inspect
import itertools
import re
from dataclasses import dataclass

_SECTION = re.compile(
    r"^(Args|Arguments|Parameters|Returns?|Yields?|Raises|Examples?|Notes?|Attributes|See Also):$"
)
_ARGUMENTS = ("Args:", "Arguments:", "Parameters:")
_ENTRY = re.compile(r"^\*{0,2}(?P<name>\w+)\s*(\([^)]*\))?:\s*(?P<text>.*)$")


@dataclass(frozen=True)
class Docstring:
    """What a docstring says.

    Attributes:
        description: The text before the first section.
        arguments: The text of each entry under `Args:`, by name.
    """

    description: str
    arguments: dict[str, str]


def parse_docstring(text: str | None) -> Docstring:
    """Read a Google-style docstring; an absent one reads as empty."""
    lines = inspect.cleandoc(text or "").splitlines()
    starts = [i for i, line in enumerate(lines) if _SECTION.match(line.rstrip())]
    description = "\n".join(lines[: starts[0]] if starts else lines).strip()
    arguments: dict[str, str] = {}
    for start, end in itertools.pairwise([*starts, len(lines)]):
        if lines[start].rstrip() in _ARGUMENTS:
            arguments.update(_entries(lines[start + 1 : end]))
    return Docstring(description, arguments)


def _entries(lines: list[str]) -> dict[str, str]:
    """The entries of an `Args:` section; deeper indented lines continue the entry above."""
    lines = inspect.cleandoc("\n" + "\n".join(lines)).splitlines()
    entries: dict[str, str] = {}
    name = None
    for line in lines:
        entry = _ENTRY.match(line)
        if entry:
            name = entry["name"]
            entries[name] = entry["text"].strip()
        elif name is not None:
            entries[name] = f"{entries[name]} {line.strip()}".strip()
    return entries
