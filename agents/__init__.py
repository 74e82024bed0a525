"""Who acts: the engine in this process, scripted agents, and the loading of models."""

from gymnast.agents.backends import make_agent
from gymnast.agents.base import Agent
from gymnast.agents.chat import ChatAgent
from gymnast.agents.loading.load import load_model
from gymnast.agents.models.kernel_choice import place_model
from gymnast.agents.policy import PolicyAgent, PolicyWeights
from gymnast.agents.scripted import ScriptedAgent
from gymnast.agents.transformers_agent import TransformersAgent
from gymnast.agents.vllm_agent import VLLMAgent

__all__ = [
    "Agent",
    "ChatAgent",
    "PolicyAgent",
    "PolicyWeights",
    "ScriptedAgent",
    "TransformersAgent",
    "VLLMAgent",
    "load_model",
    "make_agent",
    "place_model",
]
