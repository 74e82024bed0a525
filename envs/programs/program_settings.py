"""The settings of a `Program`, checked."""

from collections.abc import Mapping, Sequence
from typing import Any

from gymnast.errors import ConfigError, UsageError
from gymnast.sandboxes.contract.spec import SandboxSpec, check_env_variables


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
        raise ConfigError(f"{owner}: shown must be a list of columns, got {given!r:.200}.")
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
