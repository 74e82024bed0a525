"""An agent that samples tokens, asked for one message: the user or the critic of an episode."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from gymnast.agents.base import Agent
from gymnast.envs import Renderer
from gymnast.errors import InfrastructureError, PromptTooLong
from gymnast.threads import being_cancelled
from gymnast.trainers.base.seeds import derive
from gymnast.types import Message, Sampling


class AgentSpeaker:
    """Says the next assistant message of any conversation, as `play_messages` asks for it.

    What it says is in no trajectory, and is not trained on.

    Args:
        agent: Who samples.
        renderer: Of the agent's model.
        sampling: How to sample; its seed, if any, gives each message a seed of its own.
        context_length: Limit on the tokens of a conversation and its next message; None: the
            agent's own.
    """

    def __init__(
        self,
        agent: Agent,
        renderer: Renderer,
        sampling: Sampling | None = None,
        *,
        context_length: int | None = None,
    ) -> None:
        self._agent, self._renderer = agent, renderer
        self._sampling, self._context_length = sampling or Sampling(), context_length
        self._said = 0

    async def __call__(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()
    ) -> Message:
        """The next assistant message.

        Raises:
            PromptTooLong: The conversation leaves no token to sample.
            TemplateError: The chat template refuses the conversation.
            InfrastructureError: The agent failed.
        """
        given, self._said = self._sampling, self._said + 1
        context = self._renderer.prompt(messages, list(tools) or None)
        sampling = replace(
            given,
            stop_ids=tuple(self._renderer.stop_ids),
            max_new_tokens=min(given.max_new_tokens, self._tokens_left(context)),
            seed=None if given.seed is None else derive(given.seed, "asked", self._said),
        )
        try:
            action = await self._agent.generate(context, sampling)
        except asyncio.CancelledError as error:
            if being_cancelled():
                raise
            raise InfrastructureError("the agent cancelled its own work") from error
        return self._renderer.parse(action.ids, context_ids=context, tools=list(tools) or None)

    def _tokens_left(self, context: Sequence[int]) -> int:
        if self._context_length is None:
            return self._sampling.max_new_tokens
        left = self._context_length - len(context)
        if left < 1:
            raise PromptTooLong(
                f"the conversation that the agent is to go on with has {len(context)} tokens, "
                f"which leaves none for its message within context_length={self._context_length}. "
                "Ask it with fewer messages, or raise context_length."
            )
        return left


class AskedByHooks:
    """A speaker for the hooks of one episode, which may run on another event loop.

    It is asked once at a time, as the policy is: `deterministic` counts on one request of each
    episode. Made on the loop of the agent.

    Args:
        speaker: Says the messages.
    """

    def __init__(self, speaker: AgentSpeaker) -> None:
        self._speaker = speaker
        self._loop = asyncio.get_running_loop()
        self._free = asyncio.Lock()
        self._asked = set[asyncio.Task[Any]]()
        self._over = False

    async def __call__(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()
    ) -> Message:
        """The next assistant message; see `AgentSpeaker`.

        Raises:
            InfrastructureError: The episode was cancelled.
        """
        if self._over:
            raise InfrastructureError("the episode is over, so its agent is not asked any more")
        if asyncio.get_running_loop() is self._loop:
            return await self._say(messages, tools)
        saying = self._say(messages, tools)
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(saying, self._loop))

    def close(self) -> None:
        """End the requests under way: an episode that is cancelled may run on in its thread."""
        self._over = True
        for task in self._asked:
            task.cancel()

    async def _say(self, *asked: Any) -> Message:
        task = asyncio.current_task()
        assert task is not None
        self._asked.add(task)
        try:
            async with self._free:
                return await self._speaker(*asked)
        finally:
            self._asked.discard(task)
