"""Why the reward is 0: saved episodes without reward, sorted by what went wrong in each.

An episode is *unpaid* where the environment gave no reward, or one that is not above a bar: 0, or
the lowest reward of all episodes if that is higher and others have more. Each unpaid one has the
first of these causes that holds:

    no reward given     the environment, or a reward function, returned None
    box broken          the policy broke its box, or what the episode runs on broke
    cut off             max_tokens, context or timeout ended it: before it was done
    no calls            tools were offered, and none was called
    malformed calls     the last calls could not be read
    unknown tools       the last calls named no tool that there is
    wrong arguments     the last calls had arguments that the tool does not take
    failed tools        the tools of the last calls raised
    timeouts            the tools of the last calls were given up
    no final answer     the last calls succeeded, and max_turns ended it
    wrong answer        the last calls, if there were any, succeeded, and it ended by itself

The last calls are those of the last message that has any: a policy that has recovered from a
mistake has not failed by it. `trainers/reporting/advice` says, while a run goes on, why it does not
learn; it looks at steps and at all calls, and shares what a mistake is (`failed_calls.py`).
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from gymnast.trainers.inspecting.index import Entry
from gymnast.trainers.reporting.advice.failed_calls import (
    CUT,
    VARYING,
    FailedCall,
    failed_calls,
)
from gymnast.trainers.reporting.shown_episodes import first_action, shown_call
from gymnast.types import Branch, StopReason, Trajectory

BROKEN = "sandbox/broken"  # in `metrics`: the policy broke its box
EXAMPLES = 5  # ids that are kept of a cause
MISTAKES = 5  # forms of mistakes that are kept of a cause, the commonest

NO_REWARD = "no reward given"
CUT_OFF = "cut off"
NO_CALLS = "no calls"
BOX_BROKEN = "box broken"
NO_ANSWER = "no final answer"
WRONG_ANSWER = "wrong answer"
OF_CALLS = {
    "malformed": "malformed calls",
    "unknown_tool": "unknown tools",
    "bad_arguments": "wrong arguments",
    "exception": "failed tools",
    "timeout": "timeouts",
}
CAUSES = (NO_REWARD, BOX_BROKEN, CUT_OFF, NO_CALLS, *OF_CALLS.values(), NO_ANSWER, WRONG_ANSWER)

_VALUES = re.compile(r" \(got .*?\)(?=;|$)")
_FAULT = re.compile(r'(?:unexpected )?argument "')
_LISTED = re.compile(r"-?…(?:(?:\.|, ?)-?…)*")  # numbers, and lists of them, whatever their length
_LONGEST = 120  # characters of a result that tell one form from another


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
        count: How many episodes.
        share: Of all unpaid ones.
        examples: The ids of the first `EXAMPLES`.
        mistakes: The commonest forms, at most `MISTAKES`; none where a cause has only one.
    """

    name: str
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
        groups: How many groups of two and more there are.
        groups_alike: How many of these have one reward in all their episodes, and so no advantage.
        groups_unpaid: How many of these have no paid episode.
        causes: The commonest first.
    """

    episodes: int
    unpaid: int
    bar: float
    mean_reward: float | None
    groups: int
    groups_alike: int
    groups_unpaid: int
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
    for file, some in groupby(unpaid, key=lambda entry: entry.file):
        by_number = {entry.number: entry for entry in some}
        for number, episode in file.conversations(sorted(by_number)):
            said = cause_of(episode)
            found.setdefault(said.cause, []).append((by_number[number].id, said))
    ordered = sorted(found, key=lambda name: (-len(found[name]), CAUSES.index(name)))
    by_group: dict[tuple[str, int], list[float | None]] = {}
    for entry, reward in zip(entries, rewards, strict=True):
        by_group.setdefault((entry.file.name, entry.group), []).append(reward)
    groups = [group for group in by_group.values() if len(group) > 1]
    alike = [group for group in groups if len(set(group)) == 1]
    return Diagnosis(
        len(entries),
        len(unpaid),
        bar,
        sum(known) / len(known) if known else None,
        len(groups),
        len(alike),
        sum(group[0] is None or not group[0] > bar for group in alike),
        [_summed_up(name, found[name], len(unpaid)) for name in ordered],
    )


def unpaid_up_to(rewards: Sequence[float]) -> float:
    """The bar of some rewards: 0, or the lowest one if that is higher and others are higher yet."""
    lowest, highest = min(rewards, default=0.0), max(rewards, default=0.0)
    return lowest if 0 < lowest < highest else 0.0


@dataclass(frozen=True)
class Found:
    """What went wrong in one episode.

    Attributes:
        cause: Among `CAUSES`.
        form: As `Mistake.form`; "" where the cause has only one.
        written: As `Mistake.written`.
        answer: As `Mistake.answer`.
    """

    cause: str
    form: str = ""
    written: str = ""
    answer: str = ""


def cause_of(episode: Trajectory) -> Found:
    """Why one episode is unpaid; its tokens are not looked at.

    Args:
        episode: With messages, tools and metrics.
    """
    tests: tuple[Callable[[Trajectory], Found | None], ...]
    tests = (_not_scored, _broken, _cut, _without_calls, _failed)
    for test in tests:
        if (found := test(episode)) is not None:
            return found
    if episode.stop_reason == StopReason.max_turns:
        return Found(NO_ANSWER)
    result = _last_result(episode)
    form = f"{episode.stop_reason}{_after(result)}"
    return Found(WRONG_ANSWER, form, _last_words(episode), result)


def _not_scored(episode: Trajectory) -> Found | None:
    return Found(NO_REWARD) if episode.no_reward else None


def _broken(episode: Trajectory) -> Found | None:
    if episode.metrics.get(BROKEN):
        return Found(BOX_BROKEN, "by the policy", _last_words(episode))
    if episode.stop_reason == StopReason.error:
        return Found(BOX_BROKEN, "by itself")
    return None


def _cut(episode: Trajectory) -> Found | None:
    if episode.stop_reason not in CUT:
        return None
    return Found(CUT_OFF, str(episode.stop_reason), _last_words(episode))


def _without_calls(episode: Trajectory) -> Found | None:
    offered = any(context.tools for context in episode.contexts)
    if not offered or _last_call(episode) is not None:
        return None
    return Found(NO_CALLS, str(episode.stop_reason), _last_words(episode))


def _failed(episode: Trajectory) -> Found | None:
    last = _last_call(episode)
    found = [call for call in failed_calls(episode) if (call.context, call.message) == last]
    if last is None or not found:
        return None
    call = found[0]
    return Found(OF_CALLS[call.kind], form_of(call), call.written, call.answer)


def _last_call(episode: Trajectory) -> tuple[int, int] | None:
    """In which context, and which message of it, the policy's last calls stand."""
    for place, context in reversed(list(enumerate(episode.contexts))):
        start = first_action(context)
        numbered = list(enumerate(context.messages))[start:]
        for number, message in reversed(numbered):
            if message["role"] == "assistant" and message.get("tool_calls"):
                return place, number
    return None


def form_of(call: FailedCall) -> str:
    """What is equal in mistakes of one form, for people.

    Of wrong arguments, the tool and the faults of its arguments without the values that were given;
    of malformed calls, the fault without how a call is written.
    """
    fault = _FAULT.search(call.answer)
    if call.kind == "bad_arguments" and fault is not None:
        faults = _VALUES.sub("", call.answer[fault.start() :])
        return f"{call.name}: {faults}"
    if call.kind == "unknown_tool":
        return call.name
    form = call.form.partition("; write ")[0] if call.kind == "malformed" else call.form
    return " ".join(form.removeprefix("Error: ").split())


def _last_words(episode: Trajectory) -> str:
    """What the policy said last, or called where it said nothing."""
    said = [m for m in _since_first_action(_last_context(episode)) if m["role"] == "assistant"]
    if not said:
        return ""
    calls = " ".join(shown_call(call) for call in said[-1].get("tool_calls") or ())
    return str(said[-1].get("content") or said[-1].get("raw") or calls)


def _last_result(episode: Trajectory) -> str:
    """What a tool returned last; "" where none has."""
    messages = _since_first_action(_last_context(episode))
    results = [message for message in messages if message["role"] == "tool"]
    return str(results[-1].get("content") or "") if results else ""


def _after(result: str) -> str:
    """What is equal in results of one form, as the end of a sentence; "" where nothing is."""
    line = next((line for line in reversed(result.splitlines()) if line.strip()), "")
    form = _LISTED.sub("…", VARYING.sub("…", " ".join(line.split())))
    form = form if len(form) <= _LONGEST else form[: _LONGEST - 1] + "…"
    return f' after "{form}"' if any(sign.isalpha() for sign in form) else ""


def _last_context(episode: Trajectory) -> Trajectory | Branch:
    return episode.contexts[episode.order[-1] if episode.order else 0]


def _since_first_action(context: Trajectory | Branch) -> Sequence[Mapping[str, Any]]:
    return context.messages[first_action(context) :]


def _summed_up(name: str, found: Sequence[tuple[str, Found]], unpaid: int) -> Cause:
    forms = Counter(said.form for _, said in found)
    first: Mapping[str, tuple[str, Found]] = {said.form: (id, said) for id, said in found[::-1]}
    mistakes = [
        Mistake(form, count, first[form][1].written, first[form][1].answer, first[form][0])
        for form, count in forms.most_common(MISTAKES)
        if form
    ]
    examples = [id for id, _ in found[:EXAMPLES]]
    return Cause(name, len(found), len(found) / unpaid, examples, mistakes)
