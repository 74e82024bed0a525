"""Why a run does not learn, and what to do: from what was seen of its steps to sentences.

Each case is a pure function of a `History` and a few facts about the run; docs/learning.md lists
what they say. A run that learns hears nothing: what may be a stage of learning (malformed calls,
episodes that are cut) is said where nearly no episode has an advantage, none earned more than 0,
or the reward has stopped rising. `numbers.py` has the cases that are about the optimisation,
`speed.py` those of a run that may learn and is slow.
"""

from collections.abc import Callable
from dataclasses import dataclass

from gymnast.trainers.base.observer import SOLVED, Advice
from gymnast.trainers.reporting.advice.history import History, mean, rises
from gymnast.trainers.reporting.advice.numbers import NEARLY, falls, optimisation
from gymnast.trainers.reporting.advice.seen import SeenStep
from gymnast.trainers.reporting.advice.speed import NO_FACTS, SpeedFacts, speed
from gymnast.trainers.reporting.advice.sudden_falls import NO_REMEDY, Remedy, sudden_falls
from gymnast.trainers.reporting.advice.words import PAGE, SPEED_PAGE, clipped, percent

# Calls or episodes of which so many go wrong in one way have it as their main trouble.
MOST = 0.5
# With fewer episodes that have an advantage than these, there is next to nothing to learn from.
FEW_ADVANTAGES = 0.1
# Calls in fewer episodes than these are accidents: a group of eight has none that others copy.
FEW_CALL = 0.1


@dataclass(frozen=True)
class Facts:
    """What advice needs to know of a run besides its steps.

    Attributes:
        unsolved: Returns the name of the environment's class where it has no `solve`, else "";
            called where advice depends on it.
        max_grad_norm: Longer gradients are scaled down to this norm.
        max_new_tokens: How many a turn may have.
        pass_reward: An episode passes when its reward reaches this.
        warmup_steps: How many steps the run's warm-up has; 0: there is none.
        remedy: What to do about a reward that falls at once.
        speed: What advice about speed depends on.
    """

    unsolved: Callable[[], str]
    max_grad_norm: float
    max_new_tokens: int
    pass_reward: float = 1.0
    warmup_steps: int = 0
    remedy: Remedy = NO_REMEDY
    speed: SpeedFacts = NO_FACTS


Case = Callable[[History, Facts], tuple[str, str] | None]


def advise(history: History, facts: Facts) -> list[Advice]:
    """Why the run does not learn or is slow, as far as its steps show; [] where it may learn.

    Args:
        history: Of the run.
        facts: About it.
    """
    step = history.recent[-1].number if history.recent else 0
    sudden = sudden_falls(history, facts.remedy)
    if not history.latest:
        return [Advice(step, cause, text, PAGE) for cause, text in sudden]
    solved = mean("reward/mean", history.latest) >= NEARLY * facts.pass_reward
    found = [] if solved else [said for case in CALLS if (said := case(history, facts))]
    if not found and (said := no_spread(history, facts)):  # what explains it says more
        found.append(said)
    found += optimisation(history, facts.max_grad_norm)
    found += falls(history, facts.pass_reward)
    found += sudden
    advice = [Advice(step, cause, text, PAGE) for cause, text in found]
    slow = speed(history, facts.speed)
    return advice + [Advice(step, cause, text, SPEED_PAGE) for cause, text in slow]


def is_stuck(history: History) -> bool:
    """Whether the last steps have next to no advantage or nothing earned, or nothing rises."""
    steps = history.latest
    idle = mean("advantage/episodes", steps) < FEW_ADVANTAGES
    return idle or earn_nothing(steps) or not rises(history)


def earn_nothing(steps: list[SeenStep]) -> bool:
    """Whether no episode earned more than 0: a small penalty spreads rewards and teaches little."""
    return all(step.best is not None and step.best <= 0 for step in steps)


def no_calls(history: History, facts: Facts) -> tuple[str, str] | None:
    """Tools are offered, and hardly an episode calls one, nor do most teach anything else."""
    steps = history.latest
    idle = mean("advantage/episodes", steps) <= MOST or earn_nothing(steps) or not rises(history)
    if not (idle and _hardly_call(steps)):
        return None
    share = mean("episodes/calling", steps)
    offered = f"though {clipped(', '.join(steps[-1].tools))} can be called"
    rest = f"of {history.span} called a tool, {offered}: {_show(history, facts)}"
    if share:
        return "few calls", f"only {percent(share)} of the episodes {rest}"
    return "no calls", f"no episode {rest}"


def _hardly_call(steps: list[SeenStep]) -> bool:
    return mean("episodes/calling", steps) <= FEW_CALL


def malformed(history: History, facts: Facts) -> tuple[str, str] | None:
    """Most calls cannot be read."""
    return _failing("malformed", "malformed calls", "could not be read", history, facts)


def unknown_tools(history: History, facts: Facts) -> tuple[str, str] | None:
    """Most calls name no tool that there is."""
    what = "name a tool that is not offered"
    return _failing("unknown_tool", "unknown tools", what, history, facts)


def wrong_arguments(history: History, facts: Facts) -> tuple[str, str] | None:
    """Most calls have arguments that the tool does not take."""
    what = "have arguments that the tool does not take"
    return _failing("bad_arguments", "wrong arguments", what, history, facts)


def cut_off(history: History, facts: Facts) -> tuple[str, str] | None:
    """Most episodes are cut by one limit."""
    steps = history.latest
    episodes = sum(step.episodes for step in steps)
    limits = {limit for step in steps for limit in step.cut}
    cut = {limit: sum(step.cut.get(limit, 0) for step in steps) for limit in limits}
    limit = max(sorted(cut), key=lambda name: cut[name], default=None)
    if limit is None or cut[limit] < MOST * episodes or not is_stuck(history):
        return None
    value = f" ({facts.max_new_tokens})" if limit == "sampling.max_new_tokens" else ""
    return "cut off", (
        f"{limit}{value} cut {percent(cut[limit] / episodes)} of the episodes of "
        f"{history.span}: raise it, or have the prompt ask for less"
    )


CALLS: tuple[Case, ...] = (no_calls, malformed, unknown_tools, wrong_arguments, cut_off)


def no_spread(history: History, facts: Facts) -> tuple[str, str] | None:
    """All episodes of each group have one reward, and so no advantage."""
    steps = history.latest
    alike = mean("advantage/groups_alike", steps)
    if not (alike == 1.0 and mean("advantage/episodes", steps) == 0.0):
        return None
    why = f"in {history.span} all episodes of each row had the same reward"
    lowest = mean("advantage/groups_alike/lowest", steps)
    highest = mean("advantage/groups_alike/highest", steps)
    reward = mean("reward/mean", steps)
    if highest == 1.0 and reward >= facts.pass_reward:
        return SOLVED, f"{why}, the highest ({reward:.3f}): the task is solved; give harder rows"
    if highest == 1.0 and lowest < 1.0:
        return "nothing better", (
            f"{why}, the highest seen ({reward:.3f}), and below evaluation.pass_reward "
            f"({facts.pass_reward:g}): if there is more to be had, raise sampling.temperature or "
            "algorithm.group_size, so that something better is tried"
        )
    if lowest == 1.0:
        return "too hard", (
            f"{why}, the lowest ({reward:.3f}), so there is nothing to learn from: the task is too "
            f"hard for this model as it is; give easier rows, or reward a part of the way, or "
            f"{_show(history, facts)}"
        )
    return "no spread", (
        f"{why} ({percent(lowest)} of the rows the lowest, {percent(highest)} the highest), so "
        "there is nothing to learn from: give rows between too hard and solved, or raise "
        "algorithm.group_size or sampling.temperature"
    )


def _failing(
    kind: str, cause: str, what: str, history: History, facts: Facts
) -> tuple[str, str] | None:
    steps = history.latest
    calls = sum(step.calls for step in steps)
    found = [step.failures[kind] for step in steps if kind in step.failures]
    count = sum(failures.count for failures in found)
    few = not calls or _hardly_call(steps)
    if few or count < MOST * calls or not is_stuck(history):
        return None
    commonest = max(found, key=lambda failures: failures.count)
    answer = commonest.answer.removeprefix("Error: ")
    means = "with the error" if kind == "malformed" else "which was answered"
    told = f', {means} "{clipped(answer)}"' if answer else ""
    return cause, (
        f"{percent(count / calls)} of the calls of {history.span} {what}, most often "
        f"like {clipped(commonest.written)}{told}: {_show(history, facts)}"
    )


def _show(history: History, facts: Facts) -> str:
    """How a model is shown what it does not do by itself."""
    worked = history.latest[-1].worked
    turns = "" if worked else "show worked turns (environment.worked_turns: 2)"
    warm = history.warm_up(facts.warmup_steps)
    unsolved = facts.unsolved()
    solve = f"write the hook `solve` of {unsolved}, then " if unsolved else ""
    if facts.warmup_steps:  # whose demonstrations are there
        return f"{warm}, or {solve}{turns}" if turns else warm
    return f"{solve}{turns} or {warm}" if turns else f"{solve}{warm}"
