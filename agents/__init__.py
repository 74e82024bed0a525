"""Who acts: the engine in this process, scripted agents, and the loading of models."""

from gymnast.agents.transformers_agent import TransformersAgent

__all__ = ["TransformersAgent"]
