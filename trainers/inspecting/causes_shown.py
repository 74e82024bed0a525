"""Why episodes are unpaid, as a table in plain text."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gymnast.trainers.inspecting.cause import CUT_OFF, NO_CALLS, OF_CALLS, WRONG_ANSWER
from gymnast.trainers.inspecting.causes import Cause, Diagnosis
from gymnast.trainers.reporting.advice.words import PAGE, clipped, percent
from gymnast.trainers.saving.saved_runs import ADVICE

_ENDS = (CUT_OFF, NO_CALLS, WRONG_ANSWER)  # whose forms say why an episode ended
# What `Mistake.answer` is; elsewhere it is what the policy was told.
_ANSWERS = {OF_CALLS["malformed"]: "error", WRONG_ANSWER: "last result"}
_SAID = 3  # of the advice that a run gave


def causes_text(found: Diagnosis) -> str:
    """The diagnosis as lines: numbers, then each cause with its mistakes and where to look."""
    return "\n".join([*_numbers(found), *(line for each in found.causes for line in _lines(each))])


def _numbers(found: Diagnosis) -> Iterator[str]:
    mean = "" if found.mean_reward is None else f"; mean reward {found.mean_reward:.4g}"
    at_zero = found.bar == 0 and (found.lowest_reward or 0) >= 0
    earned = "nothing" if at_zero else f"at most {found.bar:.4g}"
    yield f"{_episodes(found.episodes)}, of which {found.unpaid} earned {earned}{mean}"
    if found.without_calls:
        some = f"{found.without_calls} of these {found.unpaid}"
        yield f"{'it' if found.unpaid == 1 else some} called no tool"
    if found.groups_alike:
        more = "anything" if at_zero else f"more than {found.bar:.4g}"
        unpaid = f"; in {found.groups_unpaid} none earned {more}" if found.groups_unpaid else ""
        yield (
            f"in {found.groups_alike} of {found.groups} group{'' if found.groups == 1 else 's'} "
            f"all episodes have the same reward, so nothing is learned from "
            f"{'it' if found.groups_alike == 1 else 'them'}{unpaid}"
        )


def _episodes(count: int) -> str:
    return f"{count} episode{'' if count == 1 else 's'}"


def _lines(cause: Cause) -> Iterator[str]:
    yield ""
    yield f"{cause.name}: {cause.count} ({percent(cause.share)}). {cause.meaning}"
    for mistake in cause.mistakes:
        said = [f'"{clipped(mistake.written)}"'] if mistake.written else []
        if mistake.answer and clipped(mistake.answer) != clipped(mistake.form):
            name = _ANSWERS.get(cause.name, "answered")
            said.append(f'{name} "{clipped(mistake.answer)}"')
        form = ("stop reason " if cause.name in _ENDS else "") + clipped(mistake.form)
        yield f"  {mistake.count:5}  {form}  ({mistake.example})"
        yield from (f"         {line}" for line in said)
    rest = cause.count - sum(mistake.count for mistake in cause.mistakes)
    if cause.mistakes and rest:
        yield f"  {rest:5}  others"
    shown = {mistake.example for mistake in cause.mistakes}
    if more := [example for example in cause.examples if example not in shown]:
        yield f"  {'further examples' if shown else 'examples'}: {', '.join(more)}"


def advice_lines(run: Path) -> list[str]:
    """What a run said by itself about why it did not learn, the latest of each cause.

    Args:
        run: Its folder; one file of rollouts said nothing.
    """
    file = run / ADVICE
    if not file.is_file():
        return []
    said: dict[str, dict[str, Any]] = {}
    for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            advice = json.loads(line)
            said[str(advice["cause"])] = {"step": advice["step"], "text": advice["text"]}
        except (ValueError, LookupError, TypeError):  # torn
            continue
    latest = list(said.items())[-_SAID:]
    return [f"step {each['step']}, {cause}: {each['text']}" for cause, each in latest] + (
        [f"{PAGE} says more"] if latest else []
    )


def causes_record(found: Diagnosis) -> dict[str, Any]:
    """The diagnosis as a record for JSON."""
    return asdict(found)
