"""Agents by name: `make_agent`, for a trainer's `agent=` and the `agent` section of a YAML."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gymnast.agents.policy import PolicyAgent, check_policy_agent
from gymnast.agents.transformers_agent import TransformersAgent
from gymnast.errors import ConfigError, GymnastError, UserCodeError
from gymnast.lookup import Names, did_you_mean

Backend = Callable[..., PolicyAgent]

TRANSFORMERS = "transformers"
AGENTS: Names[Backend] = Names(
    "agent", "gymnast.agents", {TRANSFORMERS: TransformersAgent}, wanted="class or function"
)


def make_agent(
    model: Any,
    tokenizer: Any,
    *,
    backend: str = TRANSFORMERS,
    concurrency: int = 64,
    **settings: Any,
) -> PolicyAgent:
    """Make an agent for a model that is trained.

    Args:
        model: That is trained. "transformers" samples with this very model.
        tokenizer: The model's.
        backend: A name ("transformers", or one that an installed package registers), or
            "module:name" or "path/to/file.py:name" of a class or a function, which is called with
            the model, the tokenizer and the settings.
        concurrency: How many completions are going to be asked for at once.
        **settings: Keywords of the backend.

    Raises:
        ConfigError: There is no such backend, it has no such setting, or what it makes cannot be
            trained.
        UserCodeError: Its module raised while it was imported, or it raised itself.
    """
    make = find_backend(backend, settings)
    if make is TransformersAgent:
        settings.setdefault("max_batch", min(concurrency, 64))
    try:
        agent = make(model, tokenizer, **settings)
    except GymnastError:
        raise
    except Exception as error:
        if make is TransformersAgent:
            raise
        problem = f"{type(error).__name__}: {error}"
        raise UserCodeError("__init__", None, f"agent {backend!r}: {problem}") from error
    check_policy_agent(agent)
    return agent


def agent_for(
    model: Any,
    tokenizer: Any,
    given: PolicyAgent | Mapping[str, Any] | None,
    concurrency: int,
    kv_budget_bytes: int | None,
) -> PolicyAgent:
    """The agent that a trainer was given, or one made of what it was given.

    Args:
        model: That is trained.
        tokenizer: The model's.
        given: An agent; arguments of `make_agent` by name; or None for the default agent.
        concurrency: How many completions are going to be asked for at once.
        kv_budget_bytes: A setting of the agent that is made.

    Raises:
        ConfigError: See `make_agent`; or the budget is given to an agent that is made already, or
            is given twice.
    """
    if isinstance(given, str):
        raise ConfigError(f"agent: must be a mapping or an agent; write {{'backend': {given!r}}}")
    if given is not None and not isinstance(given, Mapping):
        check_policy_agent(given)
        if kv_budget_bytes is not None:
            raise ConfigError(
                f"kv_budget_bytes: the trainer was given {kv_budget_bytes} and an agent that is "
                "made already; give it to the agent"
            )
        return given
    settings = dict(given or {})
    if kv_budget_bytes is not None and "kv_budget_bytes" in settings:
        raise ConfigError(
            f"kv_budget_bytes: is {kv_budget_bytes}, and agent.kv_budget_bytes is "
            f"{settings['kv_budget_bytes']}; set one of them"
        )
    if kv_budget_bytes is not None:
        settings["kv_budget_bytes"] = kv_budget_bytes
    return make_agent(model, tokenizer, concurrency=concurrency, **settings)


def find_backend(name: str, settings: Iterable[str] = ()) -> Backend:
    """What makes the agents of a backend, without making one.

    Args:
        name: As in `make_agent`.
        settings: Names of settings that it is going to get.

    Raises:
        ConfigError: There is no such backend, or it has no such setting.
        UserCodeError: Its module raised while it was imported.
    """
    backend = AGENTS.find(name, "agent.backend")
    parameters = [*inspect.signature(backend).parameters.values()][2:]
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return backend
    known = [parameter.name for parameter in parameters]
    for setting in settings:
        if setting not in known:
            hint = did_you_mean(setting, known) or f" It has: {', '.join(known) or 'none'}."
            raise ConfigError(f"agent.{setting}: {name} has no such setting.{hint}")
    return backend
