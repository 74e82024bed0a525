"""Numbers about a finished episode, as `info["metrics"]` has them."""

from collections import Counter

from gymnast.envs.episode import Episode


def episode_metrics(episode: Episode) -> dict[str, float]:
    """Count an episode's turns, calls and errors.

    Returns:
        `turns`, `tool_calls`, `tool_calls/<tool>` (those that ran), `tool_errors` and
        `tool_errors/<kind>`; a count of one tool or kind is there where it is not 0.
    """
    ran = Counter(record.call.name for record in episode.calls if record.error is None)
    kinds = Counter(error.kind for error in episode.errors)
    metrics = {
        "turns": len(episode.turns),
        "tool_calls": len(episode.calls),
        "tool_errors": len(episode.errors),
        **{f"tool_calls/{name}": count for name, count in ran.items()},
        **{f"tool_errors/{kind}": count for kind, count in kinds.items()},
    }
    return {name: float(value) for name, value in metrics.items()}
