"""The settings of a `Program`, checked."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gymnast.errors import ConfigError, UsageError
from gymnast.lookup import Names
from gymnast.sandboxes.contract.spec import SandboxSpec, check_env_variables

FUNCTIONS: Names[Callable[..., Any]] = Names("function", "")  # which no package registers


def check_one_program(owner: str, command: Any, function: Any, *, boxed: bool) -> None:
    """There is a command or a function, and not both; a box needs a command.

    Raises:
        ConfigError: It is otherwise.
    """
    if command is not None and function is not None:
        raise ConfigError(
            f"{owner} plays one program, and there are two: the command {command!r:.200} and the "
            f"function {function!r:.200}. Leave one out; where a parent class has it, set it to "
            "None."
        )
    if command is None and function is None:
        way = "" if boxed else ", or function='module:name'"
        raise ConfigError(f"{owner} plays one program, and there is none: set command=[...]{way}.")
    if function is not None and boxed:
        raise ConfigError(
            f"{owner}: a function runs in this process, and no sandbox holds it, got "
            f"{function!r:.200}. Write a command instead, or play without a sandbox."
        )


def checked_function(owner: str, setting: str, given: Any) -> Callable[..., Any] | None:
    """A function of the user's, or that of the name "module:name"; None of None.

    Raises:
        ConfigError: It is something else, or is not there.
    """
    found = FUNCTIONS.find(given, f"{owner}: {setting}") if isinstance(given, str) else given
    if found is not None and not callable(found):
        raise ConfigError(
            f"{owner}: {setting} must be a function or 'module:name', got {given!r:.100}."
        )
    return found


def check_arguments(owner: str, program: Callable[..., Any]) -> None:
    """A function takes what a program is called with.

    Raises:
        ConfigError: It takes something else.
    """
    try:
        signature = inspect.signature(program)
    except (TypeError, ValueError):  # one that is written in C may have none
        return
    try:
        signature.bind(base_url="", api_key="", task={})
    except TypeError as error:
        raise ConfigError(
            f"{owner}: function {program!r:.200} cannot be called with base_url, api_key and task: "
            f"{error}. Write def agent(base_url, api_key, task), and in a class function = "
            "staticmethod(agent)."
        ) from error


def checked_command(owner: str, given: Any) -> list[str] | None:
    """An argument vector, of one or of a text for the shell; None of None.

    Raises:
        ConfigError: It is something else, or empty.
    """
    if given is None:
        return None
    words = ["/bin/sh", "-c", given] if isinstance(given, str) else given
    listed = isinstance(words, Sequence) and len(words) > 0
    if not given or not listed or not all(isinstance(word, str) and word for word in words):
        raise ConfigError(
            f"{owner}: command must be a text or a list of texts, none of them empty, got "
            f"{given!r:.200}. Write: command: [python, agent.py]."
        )
    return list(words)


def checked_columns(owner: str, given: Any) -> tuple[str, ...]:
    """The names of the columns that a program is shown.

    Raises:
        ConfigError: It is no list of texts.
    """
    listed = isinstance(given, Sequence) and not isinstance(given, str)
    if not listed or not all(isinstance(name, str) for name in given):
        raise ConfigError(
            f"{owner}: shown must be a list of columns, got {given!r:.200}. Write: shown: [column]."
        )
    return tuple(given)


def checked_variables(owner: str, given: Any) -> Mapping[str, str]:
    """Environment variables.

    Raises:
        ConfigError: They are not texts by name.
    """
    if not isinstance(given, Mapping):
        raise ConfigError(f"{owner}: variables must be texts by name, got {given!r:.200}.")
    try:
        return dict(check_env_variables(given))
    except UsageError as error:
        raise ConfigError(f"{owner}: variables: {error}") from error


def checked_sandbox(owner: str, spec: SandboxSpec | None, given: Any) -> Any:
    """The setting `sandbox` without its network, which is the endpoint of this process.

    Args:
        owner: The environment's class, for messages.
        spec: What the class declares.
        given: As for `Environment`, whose network may be "endpoint".

    Raises:
        ConfigError: It, or what the class declares, names another network or an address.
    """
    read = dict(given) if isinstance(given, Mapping) else {}
    network, address = read.pop("network", "endpoint"), read.pop("endpoint", None)
    if spec is not None and spec.network != "none":
        network, address = spec.network, spec.endpoint
    if network != "endpoint" or address is not None:
        wrong = f"network is {network!r}" if address is None else f"endpoint is {address!r}"
        raise ConfigError(
            f"{owner}: sandbox.{wrong}; the box of a program reaches the endpoint of this process, "
            "whose address Gymnast chooses, and nothing else. Write network: endpoint alone, or "
            "leave both out."
        )
    return read if isinstance(given, Mapping) else given
