"""Episodes under way: which weights sampled in each of them, and giving one up.

So an episode that has outgrown the bound is known before it is over.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextvars import ContextVar, copy_context
from dataclasses import dataclass, field
from typing import Any

from gymnast.agents.base import Agent
from gymnast.trainers.rollouts.metrics import LeftOut
from gymnast.trainers.rollouts.schedule import CLEANUP_S
from gymnast.types import Completion, Sampling, Trajectory, VersionSpan
from gymnast.visible import visible_logger

logger = visible_logger(__name__)


@dataclass(eq=False)
class Sampled:
    """What is known of an episode under way.

    Attributes:
        oldest: The oldest version that sampled any of its tokens; None before the first.
        asked: The version when the request under way was made; None while there is none.
    """

    oldest: int | None = None
    asked: int | None = None

    def note(self, versions: Sequence[VersionSpan]) -> None:
        """Note what a completion was sampled with."""
        known = [version for _, _, version in versions]
        self.oldest = min([*known, *([] if self.oldest is None else [self.oldest])], default=None)

    def outgrows(self, least: int) -> bool:
        """Whether it has, or may have, tokens of versions below this one."""
        return any(version is not None and version < least for version in (self.oldest, self.asked))


_EPISODE: ContextVar[Sampled] = ContextVar("episode")


class WatchedAgent:
    """Samples as another agent does, and notes with which weights, episode by episode.

    Args:
        agent: Samples.
        version: Of its weights.

    Attributes:
        version: Of its weights now.
    """

    def __init__(self, agent: Agent, version: int) -> None:
        self._agent, self.version = agent, version

    async def generate(self, context_ids: list[int], sampling: Sampling) -> Completion:
        """See `gymnast.agents.Agent`."""
        sampled = _EPISODE.get(None) or Sampled()
        sampled.asked = self.version
        try:
            completion = await self._agent.generate(context_ids, sampling)
        finally:
            sampled.asked = None
        sampled.note(completion.versions)
        return completion


@dataclass(eq=False)
class _Episode:
    """One that is under way.

    Attributes:
        task: Plays it.
        sampled: What is known of it.
        left_behind: Is done when it is waited for no longer.
        why: It was given up; None if it was not.
    """

    task: "asyncio.Task[Trajectory | None]"
    left_behind: "asyncio.Future[None]"
    sampled: Sampled
    why: LeftOut | None = None


@dataclass
class UnderWay:
    """The episodes under way.

    Attributes:
        on_given_up: Is told why an episode was given up, and which: what `play` was told.
    """

    on_given_up: Callable[[LeftOut, int], object]
    _episodes: set[_Episode] = field(default_factory=set)

    async def play(
        self, coroutine: Coroutine[Any, Any, Trajectory | None], which: int, end: float | None
    ) -> Trajectory | None:
        """The trajectory of an episode; None if it was left out or given up.

        Args:
            coroutine: Plays it.
            which: Of what it is.
            end: When it is given up, by the loop's clock, for its deadline; None: never.
        """
        loop, sampled = asyncio.get_running_loop(), Sampled()
        context = copy_context()
        context.run(_EPISODE.set, sampled)
        playing = loop.create_task(coroutine, context=context)
        own = _Episode(playing, loop.create_future(), sampled)
        timer = None if end is None else loop.call_at(end, self._give_up, own, "deadline")
        self._episodes.add(own)
        try:
            waited: set[asyncio.Future[Any]] = {playing, own.left_behind}
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            playing.cancel()
            await asyncio.wait({playing})  # so that it cleans up
            raise
        finally:
            self._episodes.remove(own)
            if timer is not None:
                timer.cancel()
        if playing.done() and not playing.cancelled():
            return playing.result()
        if own.why is None:
            raise asyncio.CancelledError
        self.on_given_up(own.why, which)
        return None

    def drop_outgrown(self, least: int) -> None:
        """Give up what has, or may have, tokens of versions below this one."""
        for own in self._episodes:
            if own.sampled.outgrows(least):
                self._give_up(own, "stale")

    def _give_up(self, own: _Episode, why: LeftOut) -> None:
        """Cancel an episode, and wait for its cleanup, but not for long."""
        if own.why is None:
            own.why = why
            own.task.cancel()
            asyncio.get_running_loop().call_later(CLEANUP_S, self._leave, own)

    def _leave(self, own: _Episode) -> None:
        if not own.task.done():
            logger.warning("an episode was cancelled (%s), and did not end", own.why)
            own.task.cancel()
            own.left_behind.set_result(None)
