"""Which server is meant: its command or URL, given in settings or in a client's JSON file."""

import json
import os
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gymnast.errors import ConfigError
from gymnast.lookup import did_you_mean

_VARIABLE = re.compile(r"\$\{(?:env:)?(\w+)\}")
# What a process gets of this one's variables: nothing secret.
_INHERITED = ("HOME", "LANG", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "USER")


@dataclass(frozen=True)
class Server:
    """How a server is reached: by a command that starts it, or by a URL.

    Attributes:
        name: As messages call it: "mcp:time".
        command: The program, on this machine as an absolute path, and its arguments.
        environment: The variables of the process; in a box, besides those of the box.
        folder: Where it runs; None: here.
        url: Of a server that runs already.
        headers: Of each request.
        start_timeout_s: Seconds until it has to have answered.
    """

    name: str
    command: tuple[str, ...] = ()
    environment: tuple[tuple[str, str], ...] = ()
    folder: str | None = None
    url: str | None = None
    headers: tuple[tuple[str, str], ...] = ()
    start_timeout_s: float = 60.0


def server_of(
    name: str, given: Mapping[str, Any], file: str | None, timeout_s: float, *, boxed: bool = False
) -> Server:
    """The server of settings, or of a file's entry with settings of its own.

    Args:
        name: Of the entry, and for messages.
        given: `command`, `url`, `env`, `headers`, `cwd`; None where there is none.
        file: A JSON file with `mcpServers`.
        timeout_s: Until it has to have answered.
        boxed: Whether its command runs in a box, where other programs are.

    Raises:
        ConfigError: There is neither a command nor a URL, or both, or no such entry or program.
    """
    entry = {} if file is None else _entry(name, Path(file).expanduser())
    for key in ("command", "url", "cwd"):
        if given[key] is not None:
            entry[key] = given[key]
    for key in ("env", "headers"):
        entry[key] = {**(entry.get(key) or {}), **(given[key] or {})}
    command, url = entry.get("command"), entry.get("url")
    if (command is None) == (url is None):
        raise ConfigError(
            f"mcp:{name} needs either the command that starts a server (command: [uvx, "
            "mcp-server-time]) or the address of one (url: http://localhost:8000/mcp); "
            f"{'both are' if url is not None else 'neither is'} given."
        )
    texts = {key: _texts(name, key, entry[key]) for key in ("env", "headers")}
    if url is not None:
        if not re.match("https?://", str(url)):
            raise ConfigError(f"mcp:{name}: url is {url!r:.200}; it must begin with http(s)://.")
        headers = tuple(texts["headers"].items())
        return Server(name, url=_expanded(name, url), headers=headers, start_timeout_s=timeout_s)
    words, variables, folder = _words(name, command), texts["env"], entry.get("cwd")
    if not boxed:
        own = {key: os.environ[key] for key in _INHERITED if key in os.environ}
        variables = {**own, **variables}
        program = _program(name, words[0], variables.get("PATH", os.defpath), folder)
        words = (program, *words[1:])
    environment = tuple(variables.items())
    return Server(name, words, environment, folder, start_timeout_s=timeout_s)


def _entry(name: str, file: Path) -> dict[str, Any]:
    """The entry of a name in a file, as clients write them: its `args` belong to its command."""
    try:
        content = json.loads(file.read_text())
        servers = content["mcpServers"] if "mcpServers" in content else content["servers"]
        known = {key: dict(value) for key, value in servers.items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(
            f"mcp:{name}: {file} is no JSON file with the key mcpServers: "
            f"{type(error).__name__}: {error}"
        ) from error
    if name not in known:
        raise ConfigError(
            f"mcp:{name}: {file} has no server {name!r}.{did_you_mean(name, known)} "
            f"It has: {', '.join(known) or '(none)'}."
        )
    entry = known[name]
    if entry.get("type") == "sse":
        raise ConfigError(f"mcp:{name}: {file} says type sse; only stdio and http are spoken.")
    if "command" in entry:
        entry["command"] = [entry["command"], *(entry.get("args") or [])]
    return entry


def _words(name: str, command: Any) -> tuple[str, ...]:
    is_list = isinstance(command, Sequence) and not isinstance(command, str)
    if not is_list or not command or not all(isinstance(word, str) for word in command):
        raise ConfigError(
            f"mcp:{name}: command is {command!r:.200}; it must be a list of words: [uvx, "
            "mcp-server-time]."
        )
    return tuple(_expanded(name, word) for word in command)


def _program(name: str, program: str, path: str, folder: str | None) -> str:
    """The absolute path of a program, which is looked for beside Python's own as well."""
    if os.sep in program:
        found = os.path.join(folder or "", os.path.expanduser(program))
    else:
        path += os.pathsep + os.path.dirname(sys.executable)
        found = shutil.which(program, path=path) or ""
    if not os.access(found, os.X_OK) or not os.path.isfile(found):
        raise ConfigError(
            f"mcp:{name}: there is no program {program!r} (looked in {found or path})."
        )
    return os.path.abspath(found)


def _texts(name: str, key: str, given: Any) -> dict[str, str]:
    if not isinstance(given, Mapping) or not all(isinstance(v, str) for v in given.values()):
        raise ConfigError(f"mcp:{name}: {key} must map names to texts, got {type(given).__name__}.")
    return {str(variable): _expanded(name, value) for variable, value in given.items()}


def _expanded(name: str, text: str) -> str:
    """A text with this process's variables in place of `${NAME}` and `${env:NAME}`."""

    def value(match: re.Match[str]) -> str:
        if match[1] not in os.environ:
            raise ConfigError(f"mcp:{name} needs the variable {match[1]}, which is not set.")
        return os.environ[match[1]]

    return _VARIABLE.sub(value, text)
