"""All that a dry run has found, and the same as a record for JSON."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gymnast.trainers.dry_runs.costs import Costs
from gymnast.trainers.dry_runs.oddities import NO_REWARD, OF_RANDOM_WEIGHTS, OF_TASK, Oddity
from gymnast.trainers.dry_runs.prompts import Prompt, PromptScan
from gymnast.types import Trajectory


@dataclass(frozen=True)
class Report:
    """What a dry run has found.

    Attributes:
        agent: The name of the class of what samples.
        prompts: Of the rows that were looked at.
        first: The episode that was played alone; None where it was left out.
        groups: The episodes that were played together, by row.
        metrics: Of these.
        warmup_steps: How many steps of a warm-up the run begins with; here none was taken.
        costs: What a step is going to take.
        oddities: What is odd.
        untrained: Whether the weights are random, those of `tiny:`.
    """

    agent: str
    prompts: PromptScan
    first: Trajectory | None
    groups: Sequence[Sequence[Trajectory]]
    metrics: Mapping[str, float]
    warmup_steps: int
    costs: Costs
    oddities: Sequence[Oddity]
    untrained: bool = False

    @property
    def expected(self) -> list[str]:
        """The causes of what is odd that random weights explain, where the weights are."""
        causes = dict.fromkeys(each.cause for each in self.oddities)
        explained = OF_RANDOM_WEIGHTS if self.untrained else frozenset()
        if not causes.keys().isdisjoint(OF_TASK):  # then trained weights earn nothing either
            explained -= {NO_REWARD, "too hard"}
        return [cause for cause in causes if cause in explained]

    @property
    def episodes(self) -> list[Trajectory]:
        """Those that were played together."""
        return [episode for group in self.groups for episode in group]


def report_record(report: Report) -> dict[str, Any]:
    """A report as a record for JSON."""
    found = report.prompts
    costs = report.costs
    derived = {name: getattr(costs, name) for name in ("rollout_s", "train_s", "step_s", "run_s")}
    return {
        "agent": report.agent,
        "prompt": None if found.first is None else _prompt_record(found.first),
        "prompts": {
            "rows": found.rows,
            "of": found.of,
            "shortest": found.shortest,
            "longest": found.longest,
            "too_long": [{"row": row, "tokens": n} for row, n in found.too_long.items()],
        },
        "episode": None if report.first is None else _episode_record(report.first),
        "rollouts": {
            "episodes": len(report.episodes),
            "rewards": [[episode.reward for episode in group] for group in report.groups],
            "stop_reasons": dict(Counter(str(each.stop_reason) for each in report.episodes)),
            "metrics": dict(report.metrics),
        },
        "costs": asdict(costs) | derived,
        "oddities": [asdict(each) for each in report.oddities],
        "expected": report.expected,
    }


def _prompt_record(prompt: Prompt) -> dict[str, Any]:
    return {
        "row": prompt.row,
        "environment": prompt.environment,
        "length": len(prompt.tokens),
        "left": prompt.left,
        "limits": dict(prompt.limits),
        "tokens": [asdict(token) for token in prompt.tokens],
        "messages": list(prompt.messages),
        "tools": list(prompt.tools),
        "tools_text": prompt.tools_text,
        "lost": list(prompt.lost),
    }


def _episode_record(episode: Trajectory) -> dict[str, Any]:
    return {
        "reward": episode.reward,
        "reward_parts": dict(episode.reward_parts),
        "stop_reason": str(episode.stop_reason),
        "turns": episode.steps,
        "tokens": episode.tokens,
        "contexts": [context.messages for context in episode.contexts],
    }
