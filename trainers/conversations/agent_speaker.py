"""An agent that samples tokens, asked for one message: the user or the critic of an episode."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from gymnast.agents.base import Agent
from gymnast.envs import Renderer
from gymnast.trainers.base.seeds import derive
from gymnast.types import Message, Sampling


class AgentSpeaker:
    """Says the next assistant message of any conversation, as `play_messages` asks for it.

    What it says is in no trajectory, and is not trained on.

    Args:
        agent: Who samples.
        renderer: Of the agent's model.
        sampling: How to sample; its seed, if any, gives each message a seed of its own.
    """

    def __init__(self, agent: Agent, renderer: Renderer, sampling: Sampling | None = None) -> None:
        self._agent, self._renderer = agent, renderer
        self._sampling = sampling or Sampling()
        self._said = 0

    async def __call__(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()
    ) -> Message:
        """The next assistant message.

        Raises:
            TemplateError: The chat template refuses the conversation.
            InfrastructureError: The agent failed.
        """
        given, self._said = self._sampling, self._said + 1
        sampling = replace(
            given,
            stop_ids=tuple(self._renderer.stop_ids),
            seed=None if given.seed is None else derive(given.seed, "asked", self._said),
        )
        context = self._renderer.prompt(messages, list(tools) or None)
        action = await self._agent.generate(context, sampling)
        return self._renderer.parse(action.ids, context_ids=context, tools=list(tools) or None)
