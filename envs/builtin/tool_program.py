"""Talking to the program in an image that describes tools and runs them.

docs/container.md specifies what it reads and prints; `container.py` decides when it is started.
"""

import dataclasses
import json
import posixpath
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

from gymnast.envs.boxes.fresh_box import GradingBox, Ungraded
from gymnast.envs.boxes.safe_python import python_that_imports_from_its_folder, require_safe_path
from gymnast.envs.boxes.settings import BoxSettings
from gymnast.envs.tools.definition import Tool
from gymnast.envs.tools.json_schema import tool_of_schema
from gymnast.errors import SandboxDead, ToolDefinitionError, UserCodeError, shown
from gymnast.numbers import finite_number, finite_sum
from gymnast.sandboxes.contract.base import Sandbox
from gymnast.sandboxes.contract.spec import ExecResult

PROTOCOL = 1
_MAX_SHOWN = 400
_MAX_ROWS_BYTES = 64 << 20
Reward = float | dict[str, float]

_OPERATIONS = ("rows", "setup", "reward")  # those that a program need not have


class ToolFailed(Exception):
    """A call ended with an error; the message is for the policy."""


@dataclass(frozen=True)
class ToolProgram:
    """A program and its description of itself.

    Attributes:
        argv: The command that starts it.
        tools: By name, in its order, without their time limits, which apply inside the box.
        timeouts_s: The time limits of the tools that have one.
        has_setup: Whether it prepares episodes.
        has_reward: Whether it scores them.
        rows: The rows it brings along; may be empty.
        folders: Where it lies, with the modules that it may import.
    """

    argv: tuple[str, ...]
    tools: Mapping[str, Tool]
    timeouts_s: Mapping[str, float]
    has_setup: bool
    has_reward: bool
    rows: Sequence[Mapping[str, Any]] = ()
    folders: Sequence[str] = ()

    async def acall(self, sandbox: Sandbox, name: str, arguments: Mapping[str, Any]) -> str:
        """Run a tool.

        Raises:
            ToolFailed: It could not do what it was asked for.
        """
        timeout_s = self.timeouts_s.get(name)
        result = await sandbox.aexec(
            [*self.argv, "call", name], stdin=_json(arguments), timeout_s=timeout_s
        )
        if result.exit_code != 0 or result.verdict not in ("ok", "output_limit"):
            raise ToolFailed(_ended(result))
        return result.stdout.removesuffix("\n")

    def setup(self, sandbox: Sandbox, beginning: Mapping[str, Any]) -> Any:
        """Prepare an episode; return its messages, or None if the program prints none.

        Args:
            sandbox: A fresh box.
            beginning: The row and the seed.

        Raises:
            UserCodeError: The program failed, or printed something else.
            SandboxDead: The box broke.
        """
        row = beginning["row"]
        result = sandbox.exec([*self.argv, "setup"], stdin=_json(beginning))
        text = _output(self.argv, "setup", result, row)
        printed = _read(self.argv, "setup", text, row) if text.strip() else {}
        if not isinstance(printed, dict) or not printed.keys() <= {"messages"}:
            _blame(self.argv, "setup", f'printed {text!r:.200}, not {{"messages": [...]}}', row)
        return printed.get("messages")

    async def areward(self, place: GradingBox, episode: Mapping[str, Any]) -> Reward:
        """The reward of an episode: a number, or numbers by name.

        Args:
            place: A fresh box with the episode's files.
            episode: The row, the seed, the messages, the answer and the stop reason.

        Raises:
            Ungraded: The program failed, or printed something else.
            SandboxDead: The box broke.
        """
        # Safe-path mode keeps Python from importing from a script's own folder: name it here.
        paths = [*self.folders, *filter(None, [place.env.get("PYTHONPATH")])]
        env = {"PYTHONPATH": ":".join(paths)} if paths else {}
        result = await place.run([*self.argv, "reward"], stdin=_json(episode), env=env)
        row = episode["row"]
        try:
            return _reward(self.argv, _output(self.argv, "reward", result, row), row)
        except UserCodeError as error:
            raise Ungraded(error) from None


def _reward(argv: tuple[str, ...], text: str, row: Any) -> Reward:
    reward = _read(argv, "reward", text, row)
    try:
        if not isinstance(reward, dict):
            return _number(reward)
        parts = {name: _number(value) for name, value in reward.items()}
        finite_sum(parts.values())
    except ValueError as error:
        problem = f"printed {text!r:.200}, which is no finite number, nor some: {error}"
        _blame(argv, "reward", problem, row)
    return parts


def _number(value: Any) -> float:
    if not isinstance(value, int | float):
        raise ValueError(f"{shown(value)} is not a number")
    return finite_number(value)


_known: dict[tuple[BoxSettings, tuple[str, ...]], ToolProgram] = {}
_asking = threading.Lock()


def described(boxes: BoxSettings, argv: tuple[str, ...]) -> ToolProgram:
    """The program of an image, which is asked once a process, in a box of its own.

    Raises:
        UserCodeError: It is missing, failed, or printed something other than a description.
        ToolDefinitionError: A tool's description breaks a rule.
        ConfigError: It is run with -c or -m, and its Python is too old for that; see `safe_python`.
        SandboxError: No box could be opened.
    """
    with _asking:
        if (boxes, argv) not in _known:
            with boxes.pool().take() as box:
                program = describe(box, argv)
                python = python_that_imports_from_its_folder(argv)
                if program.has_reward and python is not None:
                    require_safe_path("Container", box, boxes, (python,))
                _known[boxes, argv] = program
        return _known[boxes, argv]


def describe(sandbox: Sandbox, argv: tuple[str, ...]) -> ToolProgram:
    """Ask a program in a box to describe itself; raises as `described` does."""
    text = _output(argv, "describe", sandbox.exec([*argv, "describe"]))
    description = _read(argv, "describe", text)
    if not isinstance(description, dict) or description.get("protocol") != PROTOCOL:
        _blame(argv, "describe", f'printed {text!r:.200}, which has no "protocol": {PROTOCOL}')
    if unknown := description.keys() - {"protocol", "tools", *_OPERATIONS}:
        _blame(argv, "describe", f"has the field {min(unknown)!r}, which protocol 1 has not")
    if not isinstance(description.get("tools"), list):
        _blame(argv, "describe", f"tools is {description.get('tools')!r:.200}, not a list")
    for field in _OPERATIONS:
        if not isinstance(description.get(field, False), bool):
            _blame(argv, "describe", f"{field} is {description[field]!r:.200}, not true or false")
    tools: dict[str, Tool] = {}
    for given in description["tools"]:
        tool = tool_of_schema(given)
        if tool.name in tools:
            raise ToolDefinitionError(f"{_shown(argv)} describes two tools {tool.name!r}.")
        tools[tool.name] = tool
    limits = {name: tool.options.timeout_s for name, tool in tools.items()}
    return ToolProgram(
        argv,
        {name: _without_timeout(tool) for name, tool in tools.items()},
        {name: limit for name, limit in limits.items() if limit is not None},
        description.get("setup", False),
        description.get("reward", False),
        _rows(sandbox, argv) if description.get("rows", False) else (),
        _folders(sandbox, argv) if description.get("reward", False) else (),
    )


def _rows(sandbox: Sandbox, argv: tuple[str, ...]) -> tuple[Mapping[str, Any], ...]:
    result = sandbox.exec([*argv, "rows"], max_output_bytes=_MAX_ROWS_BYTES)
    lines = [line for line in _output(argv, "rows", result).splitlines() if line.strip()]
    rows = tuple(_read(argv, "rows", line) for line in lines)
    for row in rows:
        if not isinstance(row, dict):
            _blame(argv, "rows", f"printed the row {row!r:.200}, not a JSON object")
    if not rows:
        _blame(argv, "rows", "printed none")
    return rows


def _folders(sandbox: Sandbox, argv: tuple[str, ...]) -> tuple[str, ...]:
    """The folders of the files that a command names, except that of its Python."""
    is_python = posixpath.basename(argv[0]).startswith("python")
    result = sandbox.python(
        "import json, os, shutil\n"
        f"files = [shutil.which(name) or '' for name in {argv[:1]!r}] + list({argv[1:]!r})\n"
        f"files = map(os.path.realpath, filter(os.path.isabs, files[{int(is_python)}:]))\n"
        "print(json.dumps([os.path.dirname(name) for name in files if os.path.isfile(name)]))\n"
    )
    return tuple(json.loads(result.stdout)) if result.verdict == "ok" else ()


def _without_timeout(tool: Tool) -> Tool:
    return dataclasses.replace(tool, options=dataclasses.replace(tool.options, timeout_s=None))


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _output(argv: tuple[str, ...], operation: str, result: ExecResult, row: Any = None) -> str:
    """What the program printed, if it succeeded."""
    if result.verdict == "dead":
        raise SandboxDead(f"the box broke while {_shown(argv)} {operation} ran")
    if result.verdict != "ok":
        _blame(argv, operation, _ended(result), row)
    return result.stdout


def _read(argv: tuple[str, ...], operation: str, text: str, row: Any = None) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        _blame(argv, operation, f"printed {text!r:.200}, which is no JSON ({error})", row)


def _blame(argv: tuple[str, ...], operation: str, problem: str, row: Any = None) -> NoReturn:
    about = "" if row is None else f" (row: {row!r:.300})"
    raise UserCodeError(
        operation,
        row,
        f"Container: {_shown(argv)} {operation}: {problem}{about}. See docs/container.md for what "
        "the program in the image must do, and `program` for which one is run.",
    )


def _ended(result: ExecResult) -> str:
    """How a run that did not succeed ended, with the end of its output."""
    ways = {
        "timeout": "out of time, and killed",
        "oom": "out of memory, and killed",
        "output_limit": "too much output, and killed",
        "dead": "its box broke",
    }
    output = (result.stderr.strip() or result.stdout.strip())[-_MAX_SHOWN:]
    how = ways.get(result.verdict, f"exit code {result.exit_code}")
    return f"{how}: {output}" if output else how


def _shown(argv: tuple[str, ...]) -> str:
    return repr(" ".join(argv))
