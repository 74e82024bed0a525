"""Checking what is sent into a box: commands, texts and contents."""

import os
from collections.abc import Sequence
from typing import Any

from gymnast.errors import SandboxTextError, UsageError


def check_argv(command: str | Sequence[str]) -> list[str]:
    """The argument vector of a command; a text is for the shell.

    Raises:
        UsageError: It is none.
    """
    if isinstance(command, str):
        return ["/bin/sh", "-c", check_text("command", command)]
    if not isinstance(command, Sequence) or not all(isinstance(part, str) for part in command):
        raise UsageError(f"command is {command!r:.200}; it must be a text or a list of texts")
    argv = [check_text("command", part) for part in command]
    if not argv:
        raise UsageError("command is empty; it must be a text or name a program")
    return argv


def check_text(name: str, value: Any) -> str:
    """Return the value if it is a text that a system takes.

    Raises:
        SandboxTextError: It is not.
    """
    if not isinstance(value, str) or "\0" in value:
        raise SandboxTextError(f"{name} is {value!r}; it must be a text without NUL")
    try:
        os.fsencode(value)
    except UnicodeEncodeError:
        raise SandboxTextError(f"{name} is {value!r}; it must be a text that has bytes") from None
    return value


def as_bytes(data: str | bytes) -> bytes:
    """The bytes of a content; a text as UTF-8.

    Raises:
        UsageError: It is neither text nor bytes.
    """
    if not isinstance(data, str | bytes | bytearray | memoryview):
        raise UsageError(f"{data!r:.200} is no content for a box; it must be text or bytes")
    return data.encode("utf-8", "surrogatepass") if isinstance(data, str) else bytes(data)
