"""Rewards before and after: how far they agree, and where they differ most."""

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from gymnast.numbers import exact_mean
from gymnast.trainers.rescoring.scores import Rescored

FEW_VALUES = 5  # up to so many different rewards, a table has a line for each
_SAME = 1e-9
_LARGE = 1e70
_BINS = ("<= 0", "0 to 1", ">= 1")


@dataclass(frozen=True)
class Change:
    """An episode whose reward changed."""

    id: str
    old: float
    new: float


@dataclass(frozen=True)
class Comparison:
    """Rewards before and after.

    Attributes:
        episodes: How many were graded.
        compared: How many have a reward before and after; what follows is of these.
        old_mean: Before; None where none is compared.
        new_mean: After; likewise.
        changed: How many have another reward.
        higher: How many of these have a higher one.
        correlation: Pearson's; None where either does not vary.
        agreement: How many have which reward before (first) and after (second).
        without_old: How many had no reward before.
        without_new: How many have none after: a function returned None.
        failed: How many a function raised in.
        failures: What was raised, each with how often; the commonest first.
        groups: How many groups of two and more there are.
        old_spread: How many of these had different rewards, from which something is learned.
        new_spread: How many have.
        without_tokens: Of how many no token ids are saved.
        changes: Those that changed most, the largest change first.
    """

    episodes: int
    compared: int
    old_mean: float | None
    new_mean: float | None
    changed: int
    higher: int
    correlation: float | None
    agreement: Mapping[tuple[str, str], int]
    without_old: int
    without_new: int
    failed: int
    failures: Mapping[str, int]
    groups: int
    old_spread: int
    new_spread: int
    without_tokens: int
    changes: Sequence[Change]


def compare(rescored: Sequence[Rescored], *, most_changes: int = 10) -> Comparison:
    """Compare rewards before and after.

    Args:
        rescored: As `rescore` returned them.
        most_changes: How many of the largest changes are kept.
    """
    pairs = [
        Change(each.entry.id, each.old, each.new)
        for each in rescored
        if each.old is not None and each.new is not None
    ]
    changes = [pair for pair in pairs if abs(pair.new - pair.old) > _SAME]
    old, new = [pair.old for pair in pairs], [pair.new for pair in pairs]
    failures = Counter(each.failure for each in rescored if each.failure)
    groups: dict[tuple[str, int], list[Rescored]] = {}
    for each in rescored:
        groups.setdefault((each.entry.file.name, each.entry.group), []).append(each)
    several = [group for group in groups.values() if len(group) > 1]
    return Comparison(
        episodes=len(rescored),
        compared=len(pairs),
        old_mean=exact_mean(old) if old else None,
        new_mean=exact_mean(new) if new else None,
        changed=len(changes),
        higher=sum(change.new > change.old for change in changes),
        correlation=_correlation(old, new),
        agreement=Counter(zip(_labels(old), _labels(new), strict=True)),
        without_old=sum(each.old is None for each in rescored),
        without_new=sum(each.new is None and not each.failure for each in rescored),
        failed=failures.total(),
        failures=dict(failures.most_common()),
        groups=len(several),
        old_spread=sum(_spread([each.old for each in group]) for group in several),
        new_spread=sum(_spread([each.new for each in group]) for group in several),
        without_tokens=sum(not each.has_tokens for each in rescored),
        changes=sorted(changes, key=lambda change: -abs(change.new - change.old))[:most_changes],
    )


def _spread(rewards: Sequence[float | None]) -> bool:
    return len({reward for reward in rewards if reward is not None}) > 1


def _correlation(old: Sequence[float], new: Sequence[float]) -> float | None:
    if len({*old}) < 2 or len({*new}) < 2:
        return None
    return statistics.correlation(_within_one(old), _within_one(new))


def _within_one(rewards: Sequence[float]) -> Sequence[float]:
    """Rewards over the largest of them, if it is so large that sums of squares would overflow."""
    largest = max(map(abs, rewards))
    return rewards if largest < _LARGE else [reward / largest for reward in rewards]


def _labels(rewards: Sequence[float]) -> list[str]:
    """Each reward as it is where there are few different ones; else as one of three bins."""
    values = {f"{reward:g}" for reward in rewards}
    if len(values) <= FEW_VALUES:
        return [f"{reward:g}" for reward in rewards]
    return [_BINS[(reward > 0) + (reward >= 1)] for reward in rewards]


def comparison_lines(found: Comparison) -> list[str]:
    """The comparison as lines of text."""
    episodes = "1 episode" if found.episodes == 1 else f"{found.episodes} episodes"
    lines = [f"{episodes}, {found.compared} of them with a reward before and after"]
    if found.old_mean is not None and found.new_mean is not None:
        lower = found.changed - found.higher
        lines += [
            f"mean reward {found.old_mean:.4g} before, {found.new_mean:.4g} after",
            f"changed: {found.changed} ({found.higher} higher, {lower} lower)",
        ]
    if found.correlation is not None:
        lines.append(f"correlation: {found.correlation:.3f}")
    if found.groups:
        lines.append(
            f"groups with different rewards: {found.old_spread} of {found.groups} before, "
            f"{found.new_spread} after"
        )
    for count, what in (
        (found.without_old, "had no reward before"),
        (found.without_new, f"{_have(found.without_new)} none after: a function returned None"),
    ):
        lines += [f"{count} {what}"] if count else []
    lines += [f"{count} failed: {said}" for said, count in list(found.failures.items())[:5]]
    if found.without_tokens:
        lines.append(
            f"{found.without_tokens} {_have(found.without_tokens)} no token ids, which are not "
            "saved of episodes that are played in messages: a reward that counts tokens finds "
            "none in them"
        )
    return [*lines, *_agreement_lines(found), *_change_lines(found)]


def _have(count: int) -> str:
    return "has" if count == 1 else "have"


def comparison_record(found: Comparison) -> dict[str, Any]:
    """The comparison as a record for JSON."""
    table = [{"old": old, "new": new, "count": n} for (old, new), n in found.agreement.items()]
    return {**asdict(replace(found, agreement={})), "agreement": table}


def _agreement_lines(found: Comparison) -> list[str]:
    if not found.agreement:
        return []
    before = sorted({old for old, _ in found.agreement}, key=_place)
    after = sorted({new for _, new in found.agreement}, key=_place)
    head = ["before \\ after", *after]
    cells = [[old, *(str(found.agreement.get((old, new), 0)) for new in after)] for old in before]
    widths = [max(map(len, column)) for column in zip(head, *cells, strict=True)]
    rows = [
        "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        for row in (head, *cells)
    ]
    return ["", *rows]


def _place(label: str) -> float:
    return _BINS.index(label) if label in _BINS else float(label)


def _change_lines(found: Comparison) -> list[str]:
    if not found.changes:
        return []
    lines = [f"  {each.id}  {each.old:g} -> {each.new:g}" for each in found.changes]
    return ["", "largest changes:", *lines]
