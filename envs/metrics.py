"""Numbers about a finished episode, as `info["metrics"]` has them."""

from collections import Counter

from gymnast.envs.episode import Episode


def episode_metrics(episode: Episode) -> dict[str, float]:
    """Count an episode's calls and errors.

    Returns:
        `tools/calls`, `tools/calls/<tool>` (those that ran), `tools/errors` and
        `tools/errors/<kind>`; a count of one tool or kind is there where it is not 0.
    """
    ran = Counter(record.call.name for record in episode.calls if record.error is None)
    kinds = Counter(error.kind for error in episode.errors)
    metrics = {
        "tools/calls": len(episode.calls),
        "tools/errors": len(episode.errors),
        **{f"tools/calls/{name}": count for name, count in ran.items()},
        **{f"tools/errors/{kind}": count for kind, count in kinds.items()},
    }
    return {name: float(value) for name, value in metrics.items()}
