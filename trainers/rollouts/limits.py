"""The settings of a run's rollouts: how much at once, for how long, and how many may fail."""

from gymnast.shared_threads import MAX_THREADS
from gymnast.trainers.base.settings import Count, Limit, Positive, Settings


class RolloutLimits(Settings):
    """What bounds the episodes of a step."""

    concurrency: Positive = 64
    """Episodes that run at once, in each process."""
    max_threads: Positive = MAX_THREADS
    """Threads for sync tools and hooks, in each process. More episodes than that share them: each
    stays on one, and its calls wait for those of the others on it. `async def` needs none."""
    rollout_deadline_s: Limit | None = None
    """Seconds that a step's episodes have; those unfinished by then are left out and counted.
    Evaluations wait for all. None waits for all."""
    kv_budget_bytes: Positive | None = None
    """What the keys and values of all contexts may take while episodes are sampled; a setting of
    `gymnast.agents.TransformersAgent`. In between they take nothing."""
    max_failed_episodes: Count | None = None
    """In how many episodes of a step the user's code may raise; by default 0 in the first step and
    a tenth of the step's episodes after it."""

    def most_failed(self, step: int, episodes: int) -> int:
        """In how many episodes of a step the user's code may raise.

        Args:
            step: Its number; the first is 1.
            episodes: How many it has.
        """
        if self.max_failed_episodes is not None:
            return self.max_failed_episodes
        return 0 if step == 1 else episodes // 10
