"""What the rewards of groups say about a step: which rows are too hard, and what the best ones do.

advantage/groups_alike/lowest    the share of groups whose episodes all have the lowest reward that
                                 the run has seen: hopeless, as far as the policy can tell
advantage/groups_alike/highest   likewise the highest: solved. Both, while the run has seen one
                                 reward only; groups of one do not count
episodes/best/tokens, episodes/best/turns
                                 action tokens and turns: the mean over episodes with the best
                                 reward of their group
episodes/rest/tokens, episodes/rest/turns
                                 likewise over the others of these groups. Groups whose rewards are
                                 all alike are in neither, so rows of different lengths are not what
                                 differs

With dynamic sampling, all of these count the groups that were learned from; the rewards that the
run has seen are those of the groups that were replaced, too.
"""

import math
from collections.abc import Sequence
from typing import Any

from gymnast.types import Trajectory

Groups = Sequence[Sequence[Trajectory]]


class Outcomes:
    """The rewards that a run has seen.

    Attributes:
        lowest: Of them; infinity before the first.
        highest: Of them; minus infinity before the first.
    """

    def __init__(self) -> None:
        self.lowest, self.highest = math.inf, -math.inf

    def metrics(self, groups: Groups, played: Groups | None = None) -> dict[str, float]:
        """Remember the rewards of a step, and describe its groups; see the top of this file.

        Args:
            groups: Of all processes, with the rewards that were played for.
            played: These and others, from which nothing is learned, such as those that dynamic
                sampling replaced; None: there are no others.
        """
        rewarded = groups if played is None else played
        seen = [trajectory.reward for group in rewarded for trajectory in group]
        self.lowest, self.highest = min([self.lowest, *seen]), max([self.highest, *seen])
        compared = [group for group in groups if len(group) > 1]
        if not compared:
            return {}
        alike = [group[0].reward for group in compared if len(_rewards(group)) == 1]
        found = {
            "advantage/groups_alike/lowest": alike.count(self.lowest) / len(compared),
            "advantage/groups_alike/highest": alike.count(self.highest) / len(compared),
        }
        return found | _lengths([group for group in compared if len(_rewards(group)) > 1])

    def state_dict(self) -> dict[str, Any]:
        """The rewards seen, as a checkpoint keeps them."""
        return {"lowest": self.lowest, "highest": self.highest}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from those of a checkpoint."""
        self.lowest, self.highest = state["lowest"], state["highest"]


def _rewards(group: Sequence[Trajectory]) -> set[float]:
    return {trajectory.reward for trajectory in group}


def _lengths(groups: Groups) -> dict[str, float]:
    """Mean tokens and turns of the best of each group, and of the rest."""
    parts: dict[str, list[Trajectory]] = {"best": [], "rest": []}
    for group in groups:
        best = max(_rewards(group))
        for trajectory in group:
            parts["best" if trajectory.reward == best else "rest"].append(trajectory)
    metrics = {}
    for part, episodes in parts.items():
        if episodes:
            tokens = sum(episode.action_tokens for episode in episodes)
            turns = sum(episode.steps for episode in episodes)
            metrics[f"episodes/{part}/tokens"] = tokens / len(episodes)
            metrics[f"episodes/{part}/turns"] = turns / len(episodes)
    return metrics
