"""Advice, from the shares of steps, to runs that could go faster by other settings."""

from typing import NamedTuple

from gymnast.trainers.base.observer import SMALL_PASSES, WAITING
from gymnast.trainers.reporting.advice.history import A_FEW, History, mean, values
from gymnast.trainers.reporting.advice.words import percent

# Above these shares of the time of several steps.
MOSTLY_WAITING, MOSTLY_TRAINING = 0.5, 0.5
# With fewer tokens in a forward and backward pass, a GPU is not busy all the while.
FEW_TOKENS = 4096


class SpeedFacts(NamedTuple):
    """The settings that advice about speed depends on, and may name.

    Attributes:
        device: That samples: "GPU", "CPU"; "agent" where it is not known.
        trains_on_gpu: True if the learner is on a GPU.
        concurrency: Episodes that run at once in a process, at most.
        step_episodes: Episodes of a step in a process.
        max_staleness: `trainer.max_staleness`.
        can_be_stale: True if a higher one goes with the rest of the run.
        tokens_per_microbatch: `trainer.tokens_per_microbatch`, if it is not the default; else None.
        deterministic: `deterministic`, which samples in rounds.
    """

    device: str = "agent"
    trains_on_gpu: bool = False
    concurrency: int = 0
    step_episodes: int = 0
    max_staleness: int = 0
    can_be_stale: bool = False
    tokens_per_microbatch: int | None = None
    deterministic: bool = False

    def more_at_once(self) -> list[str]:
        """The settings that let the agent sample while episodes are at their tools."""
        if self.deterministic:  # in rounds, all episodes wait for the slowest tool
            return []
        under_way = self.step_episodes * (1 + self.max_staleness)
        found = []
        if self.concurrency < under_way:
            of = "a step has" if not self.max_staleness else "may be under way:"
            found.append(
                f"raise trainer.concurrency (it is {self.concurrency}; {of} {under_way} episodes)"
            )
        if self.can_be_stale and not self.max_staleness:
            found.append(
                "raise trainer.max_staleness to 1 (it is 0), so that the next episodes begin "
                "before the last ones end"
            )
        return found


NO_FACTS = SpeedFacts()


def speed(history: History, facts: SpeedFacts) -> list[tuple[str, str]]:
    """Find what makes the last steps slow: (cause, sentence) each.

    Args:
        history: Of the run.
        facts: About it.
    """
    steps, found = history.recent[-A_FEW:], []
    waiting = mean("perf/waiting_share", steps)
    measured = len(values("perf/waiting_share", steps)) == A_FEW
    ways = facts.more_at_once()
    if measured and waiting > MOSTLY_WAITING and ways:
        text = (
            f"the {facts.device} waited for tools and environments {percent(waiting)} of the last "
            f"{A_FEW} steps: {', or '.join(ways)}"
        )
        found.append((WAITING, text))
    training, size = mean("perf/training_share", steps), facts.tokens_per_microbatch
    measured = len(values("perf/training_share", steps)) == A_FEW
    if (
        measured
        and training > MOSTLY_TRAINING
        and facts.trains_on_gpu
        and size is not None
        and size < min(FEW_TOKENS, mean("tokens/trained", steps))  # else one pass has them all
    ):
        text = (
            f"training took {percent(training)} of the last {A_FEW} steps, and a pass of "
            f"trainer.tokens_per_microbatch ({size}) tokens is too small to keep a GPU busy: raise "
            f"it ({FEW_TOKENS} or more, as memory allows), or leave it out"
        )
        found.append((SMALL_PASSES, text))
    return found
