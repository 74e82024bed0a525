"""Why one saved episode is unpaid: the first of these causes that applies.

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
mistake has not failed by it. What a mistake is, is shared with `trainers/reporting/advice`
(`failed_calls.py`). `causes.py` sorts many episodes.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gymnast.trainers.reporting.advice.failed_calls import (
    CUT,
    VARYING,
    FailedCall,
    failed_calls,
)
from gymnast.trainers.reporting.shown_episodes import first_action, shown_call
from gymnast.types import Branch, StopReason, Trajectory

BROKEN = "sandbox/broken"  # in `metrics`: the policy broke its box

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
# What each means and what to do about it, in the order in which they are looked for.
MEANINGS: Mapping[str, str] = {
    NO_REWARD: "The environment or a reward function returned None. Training leaves these out.",
    BOX_BROKEN: "The policy broke its sandbox, or the sandbox itself failed.",
    CUT_OFF: "A limit ended the episode before it was done: sampling.max_new_tokens or "
    "environment.max_tokens (stop reason max_tokens), environment.context_length (context), or "
    "environment.episode_timeout_s (timeout). Where calls failed just before, fix them first; "
    "otherwise raise the limit or ask for shorter answers.",
    NO_CALLS: "Tools were offered and the policy called none. Show it calls: worked_turns, or a "
    "warm-up on demonstrations.",
    OF_CALLS[
        "malformed"
    ]: "The last calls could not be read. Demonstrations of the right form help most.",
    OF_CALLS["unknown_tool"]: "The last calls named a tool that does not exist.",
    OF_CALLS[
        "bad_arguments"
    ]: "The tool does not take the arguments of the last calls. Look at its schema.",
    OF_CALLS["exception"]: "The tools of the last calls raised. Where the arguments do not explain "
    "it, the tool has a bug.",
    OF_CALLS["timeout"]: "The tools of the last calls took longer than their timeout_s.",
    NO_ANSWER: "The last calls succeeded, and max_turns ended the episode. Allow more turns.",
    WRONG_ANSWER: "The episode ended by itself, and what it said or did was not rewarded. Compare "
    "the last results with what the reward asks for.",
}
CAUSES = tuple(MEANINGS)

_VALUES = re.compile(r" \(got .*?\)(?=;|$)")
_FAULT = re.compile(r'(?:unexpected )?argument "')
_LISTED = re.compile(r"-?…(?:(?:\.|, ?)-?…)*")  # numbers, and lists of them, whatever their length
_LONGEST = 120  # characters of a result that tell one form from another


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


def calls_nothing(episode: Trajectory) -> bool:
    """Whether tools were offered and none was called, however the episode ended."""
    offered = any(context.tools for context in episode.contexts)
    return offered and _last_call(episode) is None


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
    form = str(episode.stop_reason)
    if (call := _failed_before_the_cut(episode)) is not None:
        return Found(CUT_OFF, f"{form} after {OF_CALLS[call.kind]}", call.written, call.answer)
    return Found(CUT_OFF, form, _last_words(episode))


def _failed_before_the_cut(episode: Trajectory) -> FailedCall | None:
    """Of the last whole message with calls, the first that failed: a loop that a limit ended.

    A call that the limit itself left unfinished is passed over.
    """
    failed = {(call.context, call.message): call for call in reversed([*failed_calls(episode)])}
    for place, context, number in _calling(episode):
        if (place, number) in failed:
            return failed[place, number]
        if not any(call.get("error") for call in context.messages[number]["tool_calls"]):
            return None
    return None


def _without_calls(episode: Trajectory) -> Found | None:
    if not calls_nothing(episode):
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
    return next(((place, number) for place, _, number in _calling(episode)), None)


def _calling(episode: Trajectory) -> Iterator[tuple[int, Trajectory | Branch, int]]:
    """Where the policy's messages with calls stand, the last first."""
    for place, context in reversed(list(enumerate(episode.contexts))):
        numbered = list(enumerate(context.messages))[first_action(context) :]
        for number, message in reversed(numbered):
            if message["role"] == "assistant" and message.get("tool_calls"):
                yield place, context, number


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
