"""Agents by name: `make_agent`, for a trainer's `agent=` and the `agent` section of a YAML."""

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from gymnast.agents.models.quantized import has_quantized_layers
from gymnast.agents.policy import PolicyAgent, check_policy_agent
from gymnast.agents.transformers_agent import TransformersAgent
from gymnast.agents.vllm.checks import check_vllm_settings
from gymnast.agents.vllm_agent import VLLMAgent
from gymnast.agents.vllm_trained import trained_vllm_agent
from gymnast.errors import ConfigError, GymnastError, UserCodeError
from gymnast.lookup import Names, did_you_mean

Backend = Callable[..., PolicyAgent]

TRANSFORMERS, VLLM, CHAT = "transformers", "vllm", "chat"
AGENTS: Names[Backend] = Names(
    "agent",
    "gymnast.agents",
    {TRANSFORMERS: TransformersAgent, VLLM: trained_vllm_agent},
    wanted="class or function",
)

HOW_EXPERTS_ARE_KEPT: dict[type, str] = {
    TransformersAgent: "keep_experts=True",
    VLLMAgent: "experts_of=model",
}


def most_at_once(device: torch.device) -> int:
    """Return the number of completions that the engine samples at once by default."""
    return 256 if device.type == "cuda" else 64


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
        backend: A name ("transformers", "vllm", or one that an installed package registers), or
            "module:name" or "path/to/file.py:name" of a class or a function, which is called with
            the model, the tokenizer and the settings.
        concurrency: How many completions are going to be asked for at once.
        **settings: Keywords of the backend.

    Raises:
        ConfigError: There is no such backend, it has no such setting, or what it makes cannot be
            trained, such as servers that sample from a model with 4-bit weights.
        UserCodeError: Its module raised while it was imported, or it raised itself.
    """
    make = find_backend(backend, settings)
    if make is trained_vllm_agent and has_quantized_layers(model):
        raise not_on_servers()
    if make is TransformersAgent:
        settings.setdefault("max_batch", min(concurrency, most_at_once(model.device)))
    try:
        agent = make(model, tokenizer, **settings)
    except GymnastError:
        raise
    except Exception as error:
        if make in (TransformersAgent, trained_vllm_agent):
            raise
        problem = f"{type(error).__name__}: {error}"
        raise UserCodeError("__init__", None, f"agent {backend!r}: {problem}") from error
    check_policy_agent(agent)
    return agent


def check_agent(
    tokenizer: Any,
    *,
    backend: str = TRANSFORMERS,
    deterministic: bool = False,
    keep_experts: bool = False,
    max_staleness: int = 0,
    **settings: Any,
) -> int | None:
    """Check what can be checked of an agent's settings before the model is loaded.

    Args:
        tokenizer: The model's.
        backend: As in `make_agent`.
        deterministic: Whether the run is to repeat bit for bit.
        keep_experts: Whether its completions have to say which experts the model chose.
        max_staleness: Above 0 requests are under way while the model is trained.
        **settings: Keywords of the backend.

    Returns:
        The longest context that the agent is going to take, in tokens; None where it is not known.

    Raises:
        ConfigError: A setting does not hold, or a server cannot be used.
        UserCodeError: The backend's module raised while it was imported.
    """
    make = find_backend(backend, settings)
    if max_staleness and settings.get("share_device"):
        raise takes_turns(max_staleness, f"agent.backend {backend!r}")
    if make is not trained_vllm_agent:
        return None
    if deterministic:
        raise _not_repeatable("a vLLM server")
    return check_vllm_settings(tokenizer, keep_experts=keep_experts, **settings)


def _not_repeatable(name: str) -> ConfigError:
    return ConfigError(
        f"deterministic: needs an agent whose batches depend on the requests alone, and {name} "
        "batches them as they come; set it to false, or sample in the training process "
        "(agent.backend: transformers)"
    )


def takes_turns(max_staleness: int, name: str) -> ConfigError:
    """Return the error of an agent that cannot keep requests while the model is trained."""
    return ConfigError(
        f"max_staleness: is {max_staleness}, and {name} cannot keep requests while the model is "
        "trained: it sleeps meanwhile (agent.share_device), or has neither `learning` nor "
        "`samples_while_training`. Leave agent out to sample with the trained model, or set it to "
        "{backend: vllm, ...} without share_device, or max_staleness to 0."
    )


def not_on_servers() -> ConfigError:
    """Return the error of servers that are to sample from a model with 4-bit weights."""
    return ConfigError(
        "agent.backend: is vllm, and model.quantization is nf4: servers would sample from a base "
        "that is not quantised, which is another policy. Leave agent out to sample with the "
        "trained model, or leave model.quantization out."
    )


def leaves_budget_open(given: PolicyAgent | Mapping[str, Any] | None) -> bool:
    """Return whether `agent_for` makes an agent beside the trained model, whose budget nobody set.

    Args:
        given: As `agent_for` takes it.
    """
    settings = {} if given is None else given
    return (
        isinstance(settings, Mapping)
        and settings.get("backend", TRANSFORMERS) == TRANSFORMERS
        and settings.get("device") is None
        and settings.get("kv_budget_bytes") is None
    )


def agent_for(
    model: Any,
    tokenizer: Any,
    given: PolicyAgent | Mapping[str, Any] | None,
    concurrency: int,
    kv_budget_bytes: int | None,
    *,
    keep_experts: bool = False,
    deterministic: bool = False,
) -> PolicyAgent:
    """The agent that a trainer was given, or one made of what it was given.

    Args:
        model: That is trained.
        tokenizer: The model's.
        given: An agent; arguments of `make_agent` by name; or None for the default agent.
        concurrency: How many completions are going to be asked for at once.
        kv_budget_bytes: A setting of the agent that is made.
        keep_experts: Whether its completions have to say which experts the model chose.
        deterministic: Whether the run is to repeat bit for bit.

    Raises:
        ConfigError: See `make_agent`; or the budget is given to an agent that is made already, or
            is given twice; or the agent keeps no experts; or it cannot repeat a run; or the model
            has 4-bit weights, and servers are to sample from it.
    """
    if isinstance(given, VLLMAgent) and has_quantized_layers(model):
        raise not_on_servers()
    if deterministic and not getattr(given, "repeatable", True):
        raise _not_repeatable(type(given).__name__)
    if isinstance(given, str):
        raise ConfigError(f"agent: must be a mapping or an agent; write {{'backend': {given!r}}}")
    if given is not None and not isinstance(given, Mapping):
        check_policy_agent(given)
        if kv_budget_bytes is not None:
            raise ConfigError(
                f"kv_budget_bytes: the trainer was given {kv_budget_bytes} and an agent that is "
                "made already; give it to the agent"
            )
        return _keeping_experts(given) if keep_experts else given
    settings = dict(given or {})
    if kv_budget_bytes is not None and "kv_budget_bytes" in settings:
        raise ConfigError(
            f"kv_budget_bytes: is {kv_budget_bytes}, and agent.kv_budget_bytes is "
            f"{settings['kv_budget_bytes']}; set one of them"
        )
    if kv_budget_bytes is not None:
        settings["kv_budget_bytes"] = kv_budget_bytes
    if settings.get("backend") == CHAT:
        find_backend(CHAT)  # which says why not
    if settings.get("backend") == VLLM and deterministic:
        raise _not_repeatable("a vLLM server")
    if keep_experts and settings.get("backend", TRANSFORMERS) in (TRANSFORMERS, VLLM):
        settings["keep_experts"] = True
    agent = make_agent(model, tokenizer, concurrency=concurrency, **settings)
    return _keeping_experts(agent) if keep_experts else agent


def _keeping_experts(agent: PolicyAgent) -> PolicyAgent:
    """Check that an agent's completions say which experts were chosen.

    Raises:
        ConfigError: They do not.
    """
    if not getattr(agent, "keeps_experts", False):
        how = HOW_EXPERTS_ARE_KEPT.get(type(agent))
        hint = "" if how is None else f": make it with {how}"
        raise ConfigError(
            f"replay_routing: {type(agent).__name__} does not say which experts the model chose "
            f"(`Completion.experts`, `keeps_experts`){hint}. Set it to false, or sample with an "
            "agent that does, such as the default one."
        )
    return agent


def find_backend(name: str, settings: Iterable[str] = ()) -> Backend:
    """Find the class or function that makes the agents of a backend.

    Args:
        name: As in `make_agent`.
        settings: Names of settings that it is going to get.

    Raises:
        ConfigError: There is no such backend, or it has no such setting.
        UserCodeError: Its module raised while it was imported.
    """
    if name == CHAT:
        raise ConfigError(
            "agent.backend: chat answers in messages, without token ids, so it can be evaluated "
            "(gymnast eval) and not trained; leave agent out to train model.name"
        )
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
