"""What is odd about a run before it begins: each thing one sentence, with the way out.

Why a run would not learn, the advice of runs says (`trainers/reporting/advice`), here of one batch
of episodes. The others are about prompts, ends of turns, memory and the run's folder.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from gymnast.trainers.dry_runs.prompts import PromptScan
from gymnast.trainers.inspecting.cause import cause_of
from gymnast.trainers.reporting.advice.cases import Facts, advise
from gymnast.trainers.reporting.advice.history import DryRun
from gymnast.trainers.reporting.advice.seen import see
from gymnast.trainers.reporting.advice.words import clipped
from gymnast.trainers.rollouts.metrics import by_environment
from gymnast.types import Trajectory

CUT_OFF = "cut off"  # the advice that says less where no turn at all has ended
NO_REWARD = "no reward"
NO_STOP = "no stop"
# What weights that were never trained do: their text is noise that does not end.
_CALLS = ("no calls", "few calls", "malformed calls", "unknown tools", "wrong arguments")
OF_RANDOM_WEIGHTS = frozenset({NO_REWARD, NO_STOP, CUT_OFF, "too hard", *_CALLS})
UNSCORED, SOLVE = "unscored", "solve"
OF_TASK = (UNSCORED, SOLVE)  # why nobody can earn anything
_SHOWN = 3  # places and parts that are named
_ENOUGH = 4  # rollouts of one environment, of which none has a reward


@dataclass(frozen=True)
class Oddity:
    """Something odd, and what to do about it.

    Attributes:
        cause: In a few words: "no stop".
        text: What was seen, and the way out, with settings named as in a YAML.
    """

    cause: str
    text: str

    def __str__(self) -> str:
        return f"{self.cause}: {self.text}"


@dataclass(frozen=True)
class Batch:
    """The episodes that a dry run has played.

    Attributes:
        groups: By row.
        metrics: Of them, and of an update with them as far as one was computed.
        stop_ids: The tokens that end a turn, with their text.
    """

    groups: Sequence[Sequence[Trajectory]]
    metrics: Mapping[str, float]
    stop_ids: Mapping[int, str]

    @property
    def episodes(self) -> list[Trajectory]:
        """All of them."""
        return [episode for group in self.groups for episode in group]


def of_prompts(found: PromptScan, max_new_tokens: int) -> Iterator[Oddity]:
    """What is odd about prompts.

    Args:
        found: Those that were made.
        max_new_tokens: Of a turn.
    """
    if found.too_long:
        places = ", ".join(str(place) for place in list(found.too_long)[:_SHOWN])
        longest = max((n for n in found.too_long.values() if n is not None), default=None)
        length = "" if longest is None else f" (the longest has {longest:,} tokens)"
        yield Oddity(
            "prompts too long",
            f"{len(found.too_long)} of {found.rows} prompts leave no token to act{length}, and "
            f"training skips their rows ({places}{'...' if len(found.too_long) > _SHOWN else ''} "
            "in the order of training): raise environment.context_length, or shorten them",
        )
    if found.left is not None and found.left < max_new_tokens:
        yield Oddity(
            "little room",
            f"the longest prompt that fits leaves {found.left:,} tokens for the whole episode, "
            f"fewer than one turn may have (sampling.max_new_tokens: {max_new_tokens}): raise "
            "environment.context_length or environment.max_tokens, or lower "
            "sampling.max_new_tokens",
        )
    tools = [part for part in found.lost if not _is_of_message(part)]
    if tools:
        yield Oddity(
            "lost tool",
            f"the chat template leaves {_listed(tools)} out of the prompt, so the policy does not "
            "read it: say it in environment.system_prompt, or write a template that says it "
            "(model.chat_template)",
        )
    messages = [part for part in found.lost if _is_of_message(part)]
    if messages:
        row, count = found.lost[messages[0]]
        yield Oddity(
            "lost text",
            f"the chat template leaves {_listed(messages)} out of the prompt of row {row} (in "
            f"{count} of {found.rows} prompts): if the policy is to read it, put it into a message "
            "that the template writes, or write a template that says it (model.chat_template)",
        )


def of_episodes(batch: Batch, facts: Facts) -> list[Oddity]:
    """What is odd about episodes.

    Args:
        batch: Those that were played.
        facts: About the run.
    """
    if not batch.episodes:
        return []
    history = DryRun()
    history.add(see(1, batch.metrics, batch.groups, facts.max_new_tokens))
    advice = [Oddity(each.cause, each.text) for each in advise(history, facts)]
    no_stop = _no_stop(batch, facts, history)
    if no_stop is not None:
        advice = [each for each in advice if each.cause != CUT_OFF]
    stops = [] if no_stop is None else [no_stop]
    return [*_no_reward(batch.episodes, facts), *stops, *advice]


def _no_reward(episodes: Sequence[Trajectory], facts: Facts) -> Iterator[Oddity]:
    """No reward at all, or none in an environment of a mixture."""
    if _is_unpaid(episodes):
        yield _unpaid(episodes, "rollouts", facts)
        return
    for name, own in by_environment(episodes).items():
        if len(own) >= _ENOUGH and _is_unpaid(own):
            yield _unpaid(own, f"rollouts of {name}", facts)


def _is_unpaid(episodes: Sequence[Trajectory]) -> bool:
    rewards = {episode.reward for episode in episodes}
    return len(rewards) == 1 and max(rewards) <= 0


def _unpaid(episodes: Sequence[Trajectory], what: str, facts: Facts) -> Oddity:
    causes = Counter(cause_of(episode).cause for episode in episodes).most_common()
    why = ", ".join(f"{cause} {count}" for cause, count in causes)
    reward = episodes[0].reward
    warm_up = "the warm-up, which a dry run leaves out" if facts.warmup_steps else "a warm-up"
    had = f"had another reward than {reward:g}" if reward else "had a reward"
    return Oddity(
        NO_REWARD,
        f"none of {len(episodes)} {what} {had} ({why}): see whether a solution is paid "
        "(`gymnast check ENV` plays the environment's `solve`), and have the policy come nearer "
        f"to one, by easier rows, a better prompt, worked turns or {warm_up}",
    )


def _no_stop(batch: Batch, facts: Facts, history: DryRun) -> Oddity | None:
    """No turn ended by a token that ends turns."""
    ends = [
        context.ids[end - 1]
        for episode in batch.episodes
        for context in episode.contexts
        for start, end in context.turns
        if end > start
    ]
    if not ends or any(number in batch.stop_ids for number in ends):
        return None
    stops = ", ".join(clipped(text) for text in batch.stop_ids.values())
    return Oddity(
        NO_STOP,
        f"none of {len(ends)} turns ended with {stops}: all were cut at sampling.max_new_tokens "
        f"({facts.max_new_tokens}). Raise it. Where the text above rambles on instead, give the "
        "chat template that the model was trained with (model.chat_template), or "
        f"{history.warm_up(facts.warmup_steps)}",
    )


def _is_of_message(part: str) -> bool:
    return " of message " in part


def _listed(parts: Sequence[str]) -> str:
    more = f" and {len(parts) - _SHOWN} more" if len(parts) > _SHOWN else ""
    return ", ".join(parts[:_SHOWN]) + more
