"""What a subclass of `Environment` finds on `self` about its current episode.

What it overrides is in `hooks.py`; what it finds of boxes in `boxes/access.py`.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gymnast.envs.records.episode import Episode
from gymnast.envs.tools.definition import Tool
from gymnast.types import Message

if TYPE_CHECKING:
    from gymnast.envs.environment.episode_runner import EpisodeRunner
    from gymnast.envs.environment.tokens.contexts import TokenContexts


class EpisodeAccess:
    """The episode of an environment, for its hooks and tools.

    Attributes:
        parallel_requests: Whether a program may ask while another request of its is unanswered, as
            `reset` was told.
    """

    parallel_requests: bool
    _episode_runner: "EpisodeRunner"
    _contexts: "TokenContexts | None"

    @property
    def episode(self) -> Episode:
        """The episode so far."""
        return self._episode_runner.state.episode

    @property
    def messages(self) -> list[Message]:
        """The conversation so far, in OpenAI's shape and JSON-serialisable."""
        return self.episode.messages

    @property
    def branches(self) -> int:
        """How many contexts the episode has: one, but for a program that opens further ones."""
        return len(self.episode.branches)

    def messages_of(self, branch: int) -> list[Message]:
        """The conversation so far in one context, counted from 0.

        Raises:
            UsageError: There is no such context.
        """
        return self.episode.messages_of(branch)

    def tools_of(self, branch: int) -> list[dict[str, Any]]:
        """The schemas of the tools that one context offers, in OpenAI's shape.

        Raises:
            UsageError: There is no such context.
        """
        self.episode.messages_of(branch)
        offered = self._episode_runner.state.offered
        return list(offered[branch]) if offered else self.tools

    @property
    def tools(self) -> list[dict[str, Any]]:
        """The schemas of the tools that are offered now, in OpenAI's shape.

        Before the first episode, and during `setup` if the class has its own `tools_for`, these
        are the methods marked with `@tool`. Of a program, they are those of the last request.
        """
        state = self._episode_runner.state
        if state.offered:
            return self.tools_of(state.branch)
        return [tool.schema for tool in state.tools.values()]

    @property
    def tool_definitions(self) -> Mapping[str, Tool]:
        """The same tools with their options and parameters, by name."""
        return dict(self._episode_runner.state.tools)

    async def ask_agent(
        self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()
    ) -> Message:
        """Ask the agent that plays the episode for a message, in an async hook or tool.

        So it plays a user or a critic as well, one request after the other. What it says here is
        not trained on.

        Args:
            messages: A conversation of your own; the answer is its next assistant message.
            tools: Schemas of tools that it may call.

        Raises:
            UserCodeError: Nobody can be asked: `rollout`, `collect`, training and `play_messages`
                say who plays; elsewhere, `reset` does.
            PromptTooLong: The conversation does not fit into `context_length`; in `respond`, that
                ends the episode (`StopReason.context`).
            InfrastructureError: The agent failed.
        """
        runner = self._episode_runner
        agent = runner.agent or runner.stand_in
        if agent is None:
            raise runner.blame("ask_agent").error(
                "no agent plays this episode: play it by rollout, collect or play_messages, "
                'or pass reset(options={"agent": ...}) an async function'
            )
        return {**await agent(list(messages), list(tools))}  # type: ignore[typeddict-item]

    @property
    def tokens_of_turn(self) -> tuple[int, int]:
        """How many tokens stood before the last action, and how many it has; 0 in messages."""
        if self._contexts is None:
            return 0, 0
        context = self._contexts.current
        return len(context.ids) - context.last_action, context.last_action

    def note_unreceived(self, turns: Iterable[int]) -> None:
        """Note turns whose message nobody has read, so that they are not trained on.

        Args:
            turns: Their numbers, from 0 on.
        """
        self._episode_runner.state.unreceived.update(turns)

    def end_episode(self, *, truncated: bool = False) -> None:
        """End the episode after this turn, with `StopReason.environment`.

        Call it from a tool, `respond` or `turn_reward`, for example when a game is over.

        Args:
            truncated: Whether the task is not over, and a limit of its own was reached: the
                episode ends with `StopReason.max_turns`.
        """
        state = self._episode_runner.state
        state.ended, state.cut_off = state.ended or not truncated, state.cut_off or truncated
