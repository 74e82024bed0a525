"""The batch for both sides: groups of episodes, their rewards, and which tokens are actions.

The tokens are drawn at random, since their meaning changes neither cost nor agreement; lengths and
turns are those of tool use.
"""

import random
from collections.abc import Callable
from dataclasses import dataclass

from gymnast.types import Span, StopReason, Trajectory

PROMPT_TOKENS = 300
ACTION_TOKENS, TOOL_TOKENS = 150, 250
MOST_TURNS = 8
CONTEXT_LENGTH = 1024  # of an episode, its prompt included; what does not fit is not played


@dataclass(frozen=True)
class Episode:
    """One completion.

    Attributes:
        parts: Action, observation, action, ...: the last one is an action.
        reward: The reward of the whole.
    """

    parts: list[list[int]]
    reward: float

    @property
    def ids(self) -> list[int]:
        """The token ids after the prompt."""
        return [token for part in self.parts for token in part]

    @property
    def mask(self) -> list[int]:
        """1 on sampled tokens, 0 on those of tools."""
        return [1 - number % 2 for number, part in enumerate(self.parts) for _ in part]


@dataclass(frozen=True)
class Group:
    """The episodes of one prompt."""

    prompt: list[int]
    episodes: list[Episode]

    def trajectory(self, member: int, logprobs: list[float]) -> Trajectory:
        """The episode as Gymnast's `Trajectory`; `logprobs` are those of the action tokens."""
        episode = self.episodes[member]
        mask = [0] * len(self.prompt) + episode.mask
        sampled = iter(logprobs)
        turns, start = [], len(self.prompt)
        for number, part in enumerate(episode.parts):
            if number % 2 == 0:
                turns.append(Span(start, start + len(part)))
            start += len(part)
        return Trajectory(
            ids=self.prompt + episode.ids,
            action_mask=mask,
            logprobs=[next(sampled) if bit else 0.0 for bit in mask],
            prompt_length=len(self.prompt),
            turns=turns,
            turn_rewards=[0.0] * (len(turns) - 1) + [episode.reward],
            stop_reason=StopReason.answered,
            terminated=True,
            truncated=False,
        )


Lengths = Callable[[random.Random], list[int]]


def equal(_: random.Random) -> list[int]:
    """Three turns, all episodes alike: 150 action tokens and 250 of tools."""
    action, tool = ACTION_TOKENS // 3, TOOL_TOKENS // 2
    return [action, tool, action, tool, action]


def mix(draw: random.Random) -> list[int]:
    """One to eight turns, log-normal, as are the lengths of actions and of tools' results."""
    turns = max(1, min(MOST_TURNS, round(draw.lognormvariate(1.1, 0.6))))  # median 3
    lengths = []
    for _ in range(turns):
        lengths += [round(draw.lognormvariate(3.5, 0.4)), round(draw.lognormvariate(4.0, 0.5))]
    lengths.pop()  # medians of 33 and 55 tokens; the last turn has no tool
    while len(lengths) > 1 and sum(lengths) > CONTEXT_LENGTH - PROMPT_TOKENS:
        del lengths[-2:]
    return lengths


def no_tools(_: random.Random) -> list[int]:
    """One turn of as many tokens as an episode of `equal` has after its prompt."""
    return [ACTION_TOKENS + TOOL_TOKENS]


BATCHES: dict[str, Lengths] = {"equal": equal, "mix": mix, "no_tools": no_tools}


def batch(
    name: str, groups: int, group_size: int, vocabulary: int, *, shorter: int = 1
) -> list[Group]:
    """Draw a batch; the same for the same arguments.

    Args:
        name: One of `BATCHES`.
        groups: How many groups.
        group_size: Episodes per group.
        vocabulary: Token ids are drawn from below this.
        shorter: Divides every length.
    """
    draw = random.Random(name)

    def tokens(count: int) -> list[int]:
        return [draw.randrange(10, vocabulary) for _ in range(max(1, count // shorter))]

    return [
        Group(
            tokens(PROMPT_TOKENS),
            [
                Episode([tokens(count) for count in BATCHES[name](draw)], draw.gauss(0.0, 1.0))
                for _ in range(group_size)
            ],
        )
        for _ in range(groups)
    ]
