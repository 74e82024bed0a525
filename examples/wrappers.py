"""What the wrapper of examples/wrappers.yaml does to a reward."""


def squared(reward: float) -> float:
    """Pay good episodes more."""
    return reward**2
