"""What a task.toml says, as far as an episode here is played by it.

A field that would change the task and that nothing here can do is a problem, and so is one that
nobody knows. `tasks.py` reads the other files of a task's folder.
"""

import math
import os
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

# Fields that say nothing about how the task is played, with all that is below them.
_ABOUT = ("schema_version", "version", "task", "metadata", "source", "artifacts")
_LEFT_ALONE = (*_ABOUT, "multi_step_reward_strategy", "environment.gpu_types")
_SECTIONS = ("environment", "verifier", "agent", "solution")

_TEMPLATE = re.compile(r"\$\{([^}:]+)(?::-(.*))?\}", re.DOTALL)
_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([GMK])\s*", re.IGNORECASE)
_MIB = {"G": 1024.0, "M": 1.0, "K": 1 / 1024}


@dataclass(frozen=True)
class TaskSettings:
    """What a task.toml says.

    Attributes:
        image: An image that exists; None: it is built from environment/Dockerfile.
        build_timeout_s: How long building the image may take, in seconds.
        cpus: Cores; None: not said.
        memory_mb: Memory in MiB; None: not said.
        storage_mb: Room on the disk in MiB; None: not said.
        network: Whether the task may use a network.
        env: Variables of the container, as written: see `resolved`.
        workdir: The folder that commands run in; None: the image's.
        user: Who acts and tests; None: the image's user.
        agent_timeout_s: How long an episode may take, in seconds; None: not said.
        verifier_timeout_s: How long the tests may take, in seconds.
        verifier_env: Variables of the tests, as written.
        solution_env: Variables of the solution, as written.
    """

    image: str | None = None
    build_timeout_s: float = 600.0
    cpus: float | None = None
    memory_mb: int | None = None
    storage_mb: int | None = None
    network: bool = True
    env: Mapping[str, str] = field(default_factory=dict)
    workdir: str | None = None
    user: str | None = None
    agent_timeout_s: float | None = None
    verifier_timeout_s: float = 600.0
    verifier_env: Mapping[str, str] = field(default_factory=dict)
    solution_env: Mapping[str, str] = field(default_factory=dict)


def read_settings(
    document: Mapping[str, Any], ignore: Collection[str] = ()
) -> tuple[TaskSettings, list[str]]:
    """Read the tables of a task.toml.

    Args:
        document: The tables.
        ignore: Fields that are left unread, as "environment.gpus".

    Returns:
        The settings, and what stands in the way of playing the task: one sentence each.
    """
    reader = _Reader(document, ignore)
    settings = TaskSettings(
        image=reader.text("environment.docker_image"),
        build_timeout_s=reader.number("environment.build_timeout_sec") or 600.0,
        cpus=reader.number("environment.cpus"),
        memory_mb=reader.size("environment.memory_mb", "environment.memory"),
        storage_mb=reader.size("environment.storage_mb", "environment.storage"),
        network=reader.network(),
        env=reader.variables("environment.env"),
        workdir=reader.text("environment.workdir"),
        user=reader.user(),
        agent_timeout_s=reader.number("agent.timeout_sec"),
        verifier_timeout_s=reader.number("verifier.timeout_sec") or 600.0,
        verifier_env=reader.variables("verifier.env"),
        solution_env=reader.variables("solution.env"),
    )
    reader.refuse_the_rest()
    return settings, reader.problems


def resolved(variables: Mapping[str, str]) -> dict[str, str]:
    """Variables with `${NAME}` and `${NAME:-default}` replaced by the host's own.

    Raises:
        KeyError: The host has no variable of that name, and there is no default.
    """
    values = {}
    for name, value in variables.items():
        template = _TEMPLATE.fullmatch(value)
        if template is None:
            values[name] = value
        elif template[2] is not None:
            values[name] = os.environ.get(template[1], template[2])
        else:
            values[name] = os.environ[template[1]]
    return values


def _is_off(value: Any) -> bool:
    return value is None or value is False or value in (0, "", [], {})


_NO_STEPS = "the task has several steps, and an episode plays one instruction"
_ONE_BOX = "its tests run in another container, and here they run in that of the episode"
_NOT_BY_HOST = "a box reaches all hosts or none"
# Fields that change the task and cannot be honoured: when they may stand there all the same, and
# why not otherwise.
_REFUSED: Mapping[str, tuple[Callable[[Any], bool], str]] = {
    "steps": (_is_off, _NO_STEPS),
    "environment.gpus": (_is_off, "a box has no GPU"),
    "environment.tpu": (_is_off, "a box has no TPU"),
    "environment.mcp_servers": (_is_off, "the policy is offered a shell, and no MCP server"),
    "environment.skills_dir": (_is_off, "the policy is told of no skills"),
    "environment.healthcheck": (_is_off, "nothing that an image starts runs in a box"),
    "environment.os": (lambda value: str(value).lower() == "linux", "boxes run Linux"),
    "environment.allowed_hosts": (_is_off, _NOT_BY_HOST),
    "verifier.environment": (_is_off, _ONE_BOX),
    "verifier.environment_mode": (lambda value: value == "shared", _ONE_BOX),
    "verifier.collect": (_is_off, _ONE_BOX),
    "verifier.network_mode": (_is_off, "the tests have the network of the episode"),
    "verifier.allowed_hosts": (_is_off, _NOT_BY_HOST),
    "agent.network_mode": (_is_off, "an episode has the network of its environment"),
    "agent.allowed_hosts": (_is_off, _NOT_BY_HOST),
}


class _Reader:
    """Takes fields out of a task.toml and notes what is wrong with them."""

    def __init__(self, document: Mapping[str, Any], ignore: Collection[str]) -> None:
        self.problems: list[str] = []
        self._fields: dict[str, Any] = {}
        for name, value in document.items():
            if name in _SECTIONS and isinstance(value, Mapping):
                self._fields |= {f"{name}.{below}": given for below, given in value.items()}
            else:
                self._fields[name] = value
        for name in (*ignore, *_LEFT_ALONE):
            self._fields.pop(name, None)

    def text(self, name: str) -> str | None:
        value = self._fields.pop(name, None)
        if value is None or (isinstance(value, str) and value.strip() and "\0" not in value):
            return value
        self._problem(name, value, "it must be a text with something in it")
        return None

    def number(self, name: str) -> float | None:
        value = self._fields.pop(name, None)
        if value is None or _is_positive(value):
            return value
        self._problem(name, value, "it must be a number above 0")
        return None

    def size(self, name: str, older: str) -> int | None:
        """A size in MiB, under its name or, as in "2G", under its older one."""
        value, said = self._fields.pop(name, None), self._fields.pop(older, None)
        if value is None and isinstance(said, str) and (match := _SIZE.fullmatch(said)):
            value = float(match[1]) * _MIB[match[2].upper()]
        elif value is None and said is not None:
            self._problem(older, said, 'it must be a size as in "2G" or "512M"')
            return None
        if value is None or (_is_positive(value) and value >= 1):
            return None if value is None else int(value)
        self._problem(name, value, "it must be a number of MiB, 1 or more")
        return None

    def variables(self, name: str) -> dict[str, str]:
        value = self._fields.pop(name, {})
        good = isinstance(value, Mapping) and all(
            isinstance(given, str) and "\0" not in given and key and not set("=\0") & set(key)
            for key, given in value.items()
        )
        if not good:
            self._problem(name, value, "it must map names of variables to texts")
            return {}
        try:
            resolved(value)
        except KeyError as error:
            self._problem(name, dict(value), f"the variable {error} is not set here")
        return dict(value)

    def network(self) -> bool:
        mode = self._fields.pop("environment.network_mode", None)
        older = self._fields.pop("environment.allow_internet", None)
        if mode == "allowlist":
            self._problem("environment.network_mode", mode, _NOT_BY_HOST)
        elif mode not in (None, "public", "no-network"):
            self._problem("environment.network_mode", mode, "it is public or no-network")
        if older is not None and not isinstance(older, bool):
            self._problem("environment.allow_internet", older, "it is true or false")
        return mode == "public" if mode is not None else older is not False

    def user(self) -> str | None:
        agent, verifier = (self._fields.pop(f"{who}.user", None) for who in ("agent", "verifier"))
        if agent != verifier:
            what = {"agent.user": agent, "verifier.user": verifier}
            self.problems.append(f"{what} differ, and all runs as one user here")
        if agent is None:
            return None
        whole = isinstance(agent, int) and not isinstance(agent, bool) and agent >= 0
        if whole or (isinstance(agent, str) and re.fullmatch(r"root|\d{1,9}", agent)):
            return str(agent)
        self._problem("agent.user", agent, "it must be root or a number")
        return None

    def refuse_the_rest(self) -> None:
        for name, value in self._fields.items():
            allowed, why = _REFUSED.get(name, (_is_off, "nothing is known of this field"))
            if name not in _REFUSED or not allowed(value):
                self._problem(name, value, why)

    def _problem(self, name: str, value: Any, rule: str) -> None:
        self.problems.append(f"{name} is {value!r:.100}, and {rule}")


def _is_positive(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and 0 < value < math.inf
