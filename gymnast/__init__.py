"""Gymnast trains language models to use tools.

A toolset is an `Environment`: a `gymnasium.Env` whose actions and observations are token ids.
One trainer, for GRPO, RLOO and their kin, drives rollouts through `env.step`.

The names live in four packages, imported when first used:

    gymnast.envs       environments, tools, the renderer
    gymnast.agents     who acts: the in-process engine, scripted agents, model loading
    gymnast.trainers   rollouts, advantages, losses, the trainer, configs
    gymnast.sandboxes  where untrusted code runs

Gymnasium knows the environments as well: `gymnasium.make("gymnast:gymnast/Arithmetic-v0", ...)`.
"""

from importlib import import_module
from typing import Any

from gymnast.gymnasium_ids import register_ids

__version__ = "0.1.0"

_HOME = {
    "Environment": "gymnast.envs",
    "Renderer": "gymnast.envs",
    "check_env": "gymnast.envs",
    "make": "gymnast.envs",
    "register": "gymnast.envs",
    "tool": "gymnast.envs",
    "Agent": "gymnast.agents",
    "ChatAgent": "gymnast.agents",
    "PolicyAgent": "gymnast.agents",
    "ScriptedAgent": "gymnast.agents",
    "TransformersAgent": "gymnast.agents",
    "VLLMAgent": "gymnast.agents",
    "load_model": "gymnast.agents",
    "make_agent": "gymnast.agents",
    "Trainer": "gymnast.trainers",
    "collect": "gymnast.trainers",
    "load_config": "gymnast.trainers",
    "rollout": "gymnast.trainers",
    "stream": "gymnast.trainers",
    "Completion": "gymnast.types",
    "Message": "gymnast.types",
    "Sampling": "gymnast.types",
    "StopReason": "gymnast.types",
    "ToolCall": "gymnast.types",
    "Trajectory": "gymnast.types",
    "GymnastError": "gymnast.errors",
}

__all__ = ["__version__", *sorted(_HOME)]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'gymnast' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__() -> list[str]:
    return __all__


register_ids()
