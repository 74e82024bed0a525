"""The numbers of an evaluation, and their names.

    eval/                                    the run's own environment
    eval/by/<tag>=<value>/                   its rows with this value; see `tags.py`
    eval/<environment>/                      a further environment
    eval/<environment>/by/<tag>=<value>/     and its rows with this value

Each of these scopes has

    reward/mean                the mean reward of all episodes
    reward/low, reward/high    its 95% interval
    reward/std                 of the episodes
    pass@<k>                   the chance that one of k episodes of a row passes, k = 1, 2, 4, ...
                               up to the group size, and the group size itself; the mean over rows
    pass@<k>/low, pass@<k>/high
    pass@<k>/rows_left_out     rows with fewer than k finished episodes, where there are any
    rows                       rows with an episode that finished
    episodes/finished          their episodes

and an environment has also everything that `trainers/rollouts/metrics.py` lists. An episode passes
when its reward reaches `pass_reward`. Intervals need two rows; with fewer there are none. How each
number is computed: `trainers/evaluation/estimates.py`.
"""

import re
from collections.abc import Mapping, Sequence
from statistics import pstdev
from typing import NamedTuple

from gymnast.errors import ConfigError
from gymnast.trainers.evaluation.estimates import Estimate, clustered_mean, mean_share, pass_at_k
from gymnast.trainers.evaluation.tags import Row, divide
from gymnast.types import Trajectory

PREFIX = "eval/"
# How metrics of the run's own environment begin; no further environment may have such a name.
AREAS = (
    *("by", "environment", "environments", "episodes", "reward", "reward_parts", "rows", "rubrics"),
    *("sandbox", "time", "tokens", "tools"),
)
AFTER_WARMUP = "warmup"  # in the names of rollouts of the evaluation after a warm-up
Groups = Sequence[Sequence[Trajectory]]


def check_environment_name(name: str, setting: str) -> None:
    """Check that metrics and files can be named after a further environment.

    Args:
        name: The environment's name.
        setting: The setting that gives it, for the message.

    Raises:
        ConfigError: They cannot.
    """
    if not re.fullmatch(r"\w[\w.-]*", name) or name in AREAS:
        raise ConfigError(
            f"{setting}: a name must consist of letters, digits and _ . - and be none of "
            f"{', '.join(AREAS)}, got {name!r}"
        )
    if name.startswith(AFTER_WARMUP):
        raise ConfigError(
            f"{setting}: a name must not begin with {AFTER_WARMUP}, got {name!r}: so do the files "
            "of the evaluation after a warm-up (rollouts/eval_00000_warmup.parquet); name it "
            "otherwise"
        )


def ks(group_size: int) -> list[int]:
    """The k for which there is a pass@k: powers of two, and the group size."""
    powers = [2**power for power in range(group_size.bit_length())]
    return sorted({*powers, group_size})


def measure(groups: Groups, group_size: int, pass_reward: float) -> dict[str, float]:
    """The numbers of one scope.

    Args:
        groups: The trajectories of each row.
        group_size: How many episodes each row was to have.
        pass_reward: What an episode's reward must reach to pass.
    """
    rewards = [[trajectory.reward for trajectory in group] for group in groups if group]
    metrics: dict[str, float] = {"rows": len(rewards), "episodes/finished": sum(map(len, rewards))}
    if not rewards:
        return metrics
    _add(metrics, "reward/mean", clustered_mean(rewards))
    metrics["reward/std"] = pstdev(reward for group in rewards for reward in group)
    for k in ks(group_size):
        enough = [group for group in rewards if len(group) >= k]
        if enough:
            chances = [
                pass_at_k(len(group), sum(reward >= pass_reward for reward in group), k)
                for group in enough
            ]
            _add(metrics, f"pass@{k}", mean_share(chances, sum(map(len, enough))))
        if len(enough) < len(groups):
            metrics[f"pass@{k}/rows_left_out"] = len(groups) - len(enough)
    return metrics


def measure_environment(
    rows: Sequence[Row],
    groups: Groups,
    group_size: int,
    pass_reward: float,
    tags: Mapping[str, str],
) -> dict[str, float]:
    """The numbers of an environment and of its divisions.

    Args:
        rows: The environment's rows.
        groups: The trajectories of each row.
        group_size: How many episodes each row was to have.
        pass_reward: What an episode's reward must reach to pass.
        tags: As `tag_expressions` returns them.
    """
    metrics = measure(groups, group_size, pass_reward)
    for division, row_indices in divide(rows, tags).items():
        part = measure([groups[index] for index in row_indices], group_size, pass_reward)
        metrics |= {f"by/{division}/{name}": value for name, value in part.items()}
    return metrics


class Scope(NamedTuple):
    """One scope, read back from metrics.

    Attributes:
        name: "" for the run's own environment, "by/operation=add", "large", ...
        rows: How many rows.
        reward: The mean reward.
        passes: pass@k, by k.
    """

    name: str
    rows: int
    reward: Estimate
    passes: dict[int, Estimate]


def scopes(metrics: Mapping[str, float]) -> list[Scope]:
    """Every scope with a reward in metrics named `eval/...`, in their order."""
    names = [
        name.removeprefix(PREFIX).removesuffix("reward/mean")
        for name in metrics
        if name.startswith(PREFIX) and name.endswith("reward/mean")
    ]
    return [_scope(name, metrics) for name in names if f"{PREFIX}{name}rows" in metrics]


def _scope(name: str, metrics: Mapping[str, float]) -> Scope:
    start = f"{PREFIX}{name}pass@"
    endings = [metric.removeprefix(start) for metric in metrics if metric.startswith(start)]
    passes = {int(k): _estimate(metrics, start + k) for k in endings if k.isdigit()}
    reward = _estimate(metrics, f"{PREFIX}{name}reward/mean")
    return Scope(name.removesuffix("/"), int(metrics[f"{PREFIX}{name}rows"]), reward, passes)


def _bounds(name: str) -> tuple[str, str]:
    """The names of an estimate's bounds: reward/mean has reward/low, pass@2 has pass@2/low."""
    base = name.removesuffix("/mean")
    return f"{base}/low", f"{base}/high"


def _add(metrics: dict[str, float], name: str, estimate: Estimate) -> None:
    metrics[name] = estimate.value
    if estimate.low is not None and estimate.high is not None:
        metrics |= dict(zip(_bounds(name), (estimate.low, estimate.high), strict=True))


def _estimate(metrics: Mapping[str, float], name: str) -> Estimate:
    low, high = _bounds(name)
    return Estimate(metrics[name], metrics.get(low), metrics.get(high))
