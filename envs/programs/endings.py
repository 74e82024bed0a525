"""What is said to the author of a program about how it ended.

How it ends, and what it is worth then, is in `running.py` and `environment.py`.
"""

import os
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from gymnast.envs.programs.running import BROKEN, ProgramResult
from gymnast.visible import visible_logger

logger = visible_logger(__name__)

_MAX_SHOWN = 2000
_AS_COMMAND = (
    "at the address in its environment variable OPENAI_BASE_URL with the key in OPENAI_API_KEY, or "
    "at ANTHROPIC_BASE_URL with ANTHROPIC_API_KEY"
)
_AS_FUNCTION = "at the address `base_url` with the key `api_key`, its arguments"

_warned: set[tuple[str, str, int]] = set()


def has_failed(result: ProgramResult) -> bool:
    """Whether a program failed by itself: nobody ended it, and its box did not break."""
    return result.exit_code not in (0, BROKEN) and not result.stopped


def warn_of_failure(
    owner: str, program: Any, result: ProgramResult, row: Mapping[str, Any]
) -> None:
    """Log a warning of a program that failed, once for each program and exit code.

    Args:
        owner: The environment's class.
        program: The command or function.
        result: How it ended.
        row: The episode's row.
    """
    kind = (owner, repr(program), result.exit_code)
    if not has_failed(result) or kind in _warned:
        return
    _warned.add(kind)
    logger.warning(
        "%s: the program failed with the exit code %d. Its episode is scored like any other, and "
        "further ones with this exit code are only counted, in program/failed. The row: %.500r%s",
        owner,
        result.exit_code,
        dict(row),
        _written(result),
    )


def without_request(
    owner: str, command: Sequence[str] | None, result: ProgramResult, refusal: str | None
) -> str:
    """What to tell of a program that ended before a request of it was answered.

    Args:
        owner: The environment's class.
        command: The program, if it is a command on this machine or in a box.
        result: How it ended.
        refusal: Why its last request was refused; None: it made none.
    """
    code = f"with the exit code {result.exit_code}"
    if refusal is not None:
        how = f"ended before a request that could be answered, {code}. Its last one got: {refusal}"
    else:
        where = _AS_FUNCTION if command is None else _AS_COMMAND
        how = f"ended before its first request, {code}. It must ask {where}."
    return f"{owner}: the program {how}{_files_here(command or ())}{_written(result)}"


def _files_here(command: Sequence[str]) -> str:
    """A remark on files that a command names as if it were started in this folder."""
    words = [*command]
    if command[:2] == ["/bin/sh", "-c"]:
        try:
            words = [part for word in command[2:] for part in shlex.split(word)]
        except ValueError:  # a quote that is not closed
            words = []
    found = [word for word in words if not os.path.isabs(word) and os.path.isfile(word)]
    if not found:
        return ""
    return (
        f" It does not start in this folder, where {found[0]!r} is: write "
        f"{os.path.abspath(found[0])!r}, or put the file into the box where there is one."
    )


def _written(result: ProgramResult) -> str:
    written = result.stderr.strip()[-_MAX_SHOWN:] or result.stdout.strip()[-_MAX_SHOWN:]
    return f" The end of what it wrote: {written}" if written else ""
