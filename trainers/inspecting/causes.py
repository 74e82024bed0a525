"""Why the reward is 0: saved episodes without reward, sorted by what went wrong in each.

An episode is *unpaid* where the environment gave no reward, or one that is not above a bar: 0, or
the lowest reward of all episodes if that is higher and others have more. `cause.py` says why one of
them is unpaid. `trainers/reporting/advice` says, while a run goes on, why it does not learn; it
looks at steps and at all calls.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

from gymnast.numbers import mean
from gymnast.trainers.inspecting.cause import CAUSES, MEANINGS, Found, calls_nothing, cause_of
from gymnast.trainers.inspecting.index import Entry

EXAMPLES = 5  # ids that are kept of a cause
MISTAKES = 5  # forms of mistakes that are kept of a cause, the commonest


@dataclass(frozen=True)
class Mistake:
    """What several episodes have in common that one cause holds of.

    Attributes:
        form: What is equal in them: a limit, a tool's name, the fault of an argument, the reason
            why a call could not be read, the last result of a tool.
        count: How many episodes.
        written: In the first of them, as the policy wrote it, or what it said or called last; ""
            where nothing was written.
        answer: What it was told there, the error of a call that could not be read, or the last
            result of a tool; "" where it was told nothing.
        example: The id of the first of them.
    """

    form: str
    count: int
    written: str
    answer: str
    example: str


@dataclass(frozen=True)
class Cause:
    """A cause, and the unpaid episodes of which it holds.

    Attributes:
        name: Among `CAUSES`.
        meaning: What it means, and what to do about it.
        count: How many episodes.
        share: Of all unpaid ones.
        examples: The ids of the first `EXAMPLES`.
        mistakes: The commonest forms, at most `MISTAKES`; none where a cause has only one.
    """

    name: str
    meaning: str
    count: int
    share: float
    examples: Sequence[str]
    mistakes: Sequence[Mistake]


@dataclass(frozen=True)
class Diagnosis:
    """Why episodes are unpaid.

    Attributes:
        episodes: How many were looked at.
        unpaid: How many of them are unpaid.
        bar: They have a reward of at most this, or none.
        mean_reward: Of the episodes that have a reward; None where none has.
        lowest_reward: Of the same.
        groups: How many groups of two and more they are of, each of which is judged by all of its
            episodes.
        groups_alike: How many of these have one reward in all their episodes, and so no advantage.
        groups_unpaid: How many of these have no paid episode.
        without_calls: How many unpaid episodes were offered tools and called none, those that a
            limit cut off among them.
        causes: The commonest first.
    """

    episodes: int
    unpaid: int
    bar: float
    mean_reward: float | None
    lowest_reward: float | None
    groups: int
    groups_alike: int
    groups_unpaid: int
    without_calls: int
    causes: Sequence[Cause]


def diagnose(entries: Iterable[Entry], *, bar: float | None = None) -> Diagnosis:
    """Sort the unpaid ones of some saved episodes by what went wrong in each.

    Their tokens are not read, nor are the messages of those that are paid.

    Args:
        entries: Of an `Index`, in its order.
        bar: Up to which reward an episode is unpaid; None: see the top of this file.

    Raises:
        DataError: A file cannot be read.
    """
    entries = list(entries)
    rewards = [entry.reward for entry in entries]
    known = [reward for reward in rewards if reward is not None]
    bar = unpaid_up_to(known) if bar is None else bar
    unpaid = [
        entry
        for entry, reward in zip(entries, rewards, strict=True)
        if reward is None or not reward > bar
    ]
    found: dict[str, list[tuple[str, Found]]] = {}
    without_calls = 0
    for file, some in groupby(unpaid, key=lambda entry: entry.file):
        by_number = {entry.number: entry for entry in some}
        for number, episode in file.conversations(sorted(by_number)):
            said = cause_of(episode)
            without_calls += calls_nothing(episode)
            found.setdefault(said.cause, []).append((by_number[number].id, said))
    ordered = sorted(found, key=lambda name: (-len(found[name]), CAUSES.index(name)))
    groups = [group for group in _groups(entries) if len(group) > 1]
    alike = [group for group in groups if len(set(group)) == 1]
    return Diagnosis(
        len(entries),
        len(unpaid),
        bar,
        mean(known) if known else None,
        min(known, default=None),
        len(groups),
        len(alike),
        sum(group[0] is None or not group[0] > bar for group in alike),
        without_calls,
        [_summed_up(name, found[name], len(unpaid)) for name in ordered],
    )


def _groups(entries: Sequence[Entry]) -> Iterator[list[float | None]]:
    """The rewards of each group that some episodes are of, those of its other episodes among them.

    What a group taught does not depend on which of its episodes are looked at.
    """
    for file, some in groupby(entries, key=lambda entry: entry.file):
        taken = {entry.group for entry in some}
        by_group: dict[int, list[float | None]] = {group: [] for group in sorted(taken)}
        for entry in (Entry(file, number) for number in range(len(file))):
            if entry.group in taken:
                by_group[entry.group].append(entry.reward)
        yield from by_group.values()


def unpaid_up_to(rewards: Sequence[float]) -> float:
    """The bar of some rewards: 0, or the lowest one if that is higher and others are higher yet."""
    lowest, highest = min(rewards, default=0.0), max(rewards, default=0.0)
    return lowest if 0 < lowest < highest else 0.0


def _summed_up(name: str, found: Sequence[tuple[str, Found]], unpaid: int) -> Cause:
    forms = Counter(said.form for _, said in found)
    first: Mapping[str, tuple[str, Found]] = {said.form: (id, said) for id, said in found[::-1]}
    mistakes = [
        Mistake(form, count, first[form][1].written, first[form][1].answer, first[form][0])
        for form, count in forms.most_common(MISTAKES)
        if form
    ]
    examples = [id for id, _ in found[:EXAMPLES]]
    return Cause(name, MEANINGS[name], len(found), len(found) / unpaid, examples, mistakes)
