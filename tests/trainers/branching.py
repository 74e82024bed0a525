"""Episodes with several contexts: an environment that opens them, and episodes drawn at random."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import numpy as np
from gymnasium.spaces import Sequence as Ids

from gymnast.types import Branch, Completion, Sampling, Span, StopReason, Trajectory
from sampled_groups import forward_logprobs


def numbered(order: Sequence[int]) -> list[int]:
    """The same contexts, numbered from 0 in the order in which they begin."""
    seen: dict[int, int] = {}
    return [seen.setdefault(context, len(seen)) for context in order]


class Branching(gymnasium.Env[Any, Any]):
    """Has one action after another in the contexts that `order` says, and remembers all tokens.

    Args:
        order: The context of each action, numbered as they begin.
        unreceived: The turns that the last info names so.
    """

    def __init__(self, order: Sequence[int], unreceived: Sequence[int] = ()) -> None:
        self.order, self.unreceived = numbered(order), unreceived
        self.observation_space = self.action_space = Ids(gymnasium.spaces.Discrete(2**30))
        self.given = self.sampled = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.taken = 0
        self.contexts: list[list[tuple[int, int]]] = [[]]  # each token, and whether it was sampled
        return self._given(0, 3), self._info(0)

    def step(self, action: Any) -> Any:
        self.contexts[self.order[self.taken]] += [(int(token), 1) for token in action]
        self.taken += 1
        if self.taken == len(self.order):
            info = {"unreceived": self.unreceived} if self.unreceived else {}
            return self._given(self.order[-1], 1), float(self.taken), True, False, info
        branch = self.order[self.taken]
        info = self._info(branch)
        if branch < len(self.contexts):
            return self._given(branch, self.taken % 3), float(self.taken), False, False, info
        self.contexts.append([])
        info["prompt_ids"] = self._given(branch, 2).tolist()
        return np.zeros(0, dtype=np.int64), float(self.taken), False, False, info

    def _given(self, branch: int, count: int) -> np.ndarray:
        """Tokens that nobody else gives."""
        ids = np.arange(self.given, self.given + count)
        self.given += count
        self.contexts[branch] += [(int(token), 0) for token in ids]
        return ids

    def _info(self, branch: int) -> dict[str, Any]:
        return {"branch": branch, "state": (branch, self.taken), "tokens_left": 100}


@dataclass
class Counting:
    """Samples tokens that nobody else says, one, two or three at a time."""

    said: list[int] = field(default_factory=list)
    seeds: list[int | None] = field(default_factory=list)

    async def generate(self, context_ids: list[int], sampling: Sampling) -> Completion:
        first = 10_000 + len(self.said)
        ids = list(range(first, first + 1 + len(context_ids) % 3))
        self.said += ids
        self.seeds.append(sampling.seed)
        return Completion(ids, [-0.001 * token for token in ids], "stop")


@dataclass
class Drawn:
    """An episode drawn at random, and where each of its turns lies.

    Attributes:
        trajectory: The episode.
        places: For each turn, in order of time: its context, and the tokens of its action there.
    """

    trajectory: Trajectory
    places: list[tuple[int, Span]]


def drawn_episode(
    model: Any,
    order: Sequence[int],
    prompt: list[int],
    rewards: Sequence[float] | np.ndarray,
    random: np.random.Generator,
    *,
    shares: bool,
) -> Drawn:
    """An episode whose turns lie in the contexts that `order` says.

    Args:
        model: The log-probabilities are near those of this one.
        order: The context of each action, numbered as they begin.
        prompt: Of the first context.
        rewards: Of each turn.
        random: Draws tokens.
        shares: Whether further contexts begin with the tokens of the first one so far.
    """

    def tokens(low: int, high: int) -> list[int]:
        return [int(token) for token in random.integers(0, 1000, random.integers(low, high))]

    contexts: list[dict[str, Any]] = []
    places = []
    for context, reward in zip(order, rewards, strict=True):
        if context == len(contexts):
            begins = [*contexts[0]["ids"]] if shares and contexts else []
            start = prompt if not contexts else [*begins, *tokens(1, 20)]
            contexts.append(_context(start))
        else:
            contexts[context]["ids"] += tokens(0, 20)
        own, action = contexts[context], tokens(1, 12)
        span = Span(len(own["ids"]), len(own["ids"]) + len(action))
        own["ids"] += action
        own["turns"].append(span)
        own["turn_rewards"].append(float(reward))
        places.append((context, span))
    for own in contexts:
        mask = [0] * len(own["ids"])
        for start_of, end in own["turns"]:
            mask[start_of:end] = [1] * (end - start_of)
        noise = random.normal(scale=0.3, size=len(mask))
        near = forward_logprobs(model, own["ids"]).detach().numpy() + noise
        own |= {"action_mask": mask, "logprobs": [float(v) for v in near * np.array(mask)]}
    first, *others = contexts
    trajectory = Trajectory(
        **first,
        stop_reason=StopReason.environment,
        terminated=True,
        truncated=False,
        branches=[Branch(**each) for each in others] or (),
        order=list(order) if others else (),
    )
    return Drawn(trajectory, places)


def _context(prompt: list[int]) -> dict[str, Any]:
    return {"ids": [*prompt], "prompt_length": len(prompt), "turns": [], "turn_rewards": []}


ORDERS = [[0, 1, 0, 2, 1], [0, 1, 1], [0, 0, 1, 0], [0]]


def drawn_groups(model: Any, *, shares: bool, seed: int = 0) -> list[list[Drawn]]:
    """Two groups, of three and of two episodes."""
    random = np.random.default_rng(seed)
    groups = []
    for orders in (ORDERS[:3], [ORDERS[3], ORDERS[0]]):
        prompt = [int(token) for token in random.integers(0, 1000, 30)]
        groups.append(
            [
                drawn_episode(
                    model, order, prompt, random.normal(size=len(order)), random, shares=shares
                )
                for order in orders
            ]
        )
    return groups
