"""The settings of training beside sampling, and what they ask of the rest of a run."""

from dataclasses import replace
from typing import Literal

from gymnast.agents.backends import takes_turns
from gymnast.agents.policy import PolicyAgent, allows_staleness
from gymnast.errors import ConfigError
from gymnast.trainers.algorithms.algorithm import Algorithm
from gymnast.trainers.algorithms.importance import Importance
from gymnast.trainers.base.settings import Count, Settings

# What importance weights are capped at, where the user sets nothing.
DEFAULT_CAP = 2.0


class StalenessSettings(Settings):
    """How far episodes are played ahead of training."""

    max_staleness: Count = 0
    """How many updates old the weights may be that sampled a token which is learned from. 0 plays
    and trains in turn. Above 0 the episodes of that many further steps are under way while the
    model is trained: their tools go on, and they are sampled meanwhile by an agent that can, or
    between two updates by the trained model itself (docs/asynchronous.md)."""
    on_stale: Literal["drop", "continue"] = "drop"
    """What becomes of episodes with tokens that are older: `drop` leaves them out, and plays others
    in their place; `continue` lets them go on from the new weights, and learns from their newer
    tokens alone."""

    def check(self, agent: PolicyAgent, *, deterministic: bool, curriculum: bool) -> None:
        """Check that the rest of a run goes with it.

        Args:
            agent: Who samples.
            deterministic: The run's setting.
            curriculum: Whether there is one.

        Raises:
            ConfigError: It does not.
        """
        if not self.max_staleness:
            return
        given = f"max_staleness: is {self.max_staleness}, and"
        if deterministic:
            raise ConfigError(
                f"{given} deterministic is true: which episodes are learned from when depends on "
                "how long they take. Set one of them to 0 or false."
            )
        if curriculum:
            raise ConfigError(
                f"{given} curriculum is set, which draws the rows of a step by what the steps "
                "before it showed. Set max_staleness to 0, or leave curriculum out."
            )
        if not allows_staleness(agent):
            raise takes_turns(self.max_staleness, type(agent).__name__)

    def corrected(self, algorithm: Algorithm) -> Algorithm:
        """The algorithm with importance weights that make up for older weights.

        What it has of its own stays: weights, or ratios against the engine's log-probabilities,
        which contain them.
        """
        own = algorithm.importance is not None or algorithm.old_logprobs == "engine"
        if not self.max_staleness or own:
            return algorithm
        return replace(algorithm, importance=Importance("token", cap=DEFAULT_CAP))
