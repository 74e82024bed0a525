"""Episodes played again: equal rows, seeds and messages have equal results, replies and rewards.

An episode that was played in one instance is played again in it, in a second instance, and in turns
with another episode, each in its own instance: a step here, a step there. State that episodes share
(in the class, in the module, in a file) shows in one of these. `shared_values.py` names it.

What a server or a command in a sandbox returns is not the author's code, and may hold a time: such
a difference is odd, and others, which it may have caused, are not looked for after it.
"""

import inspect
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from gymnast.envs.checking.differences import first_difference
from gymnast.envs.checking.shared_values import (
    changed_values,
    drawn_from,
    reads_clock,
    shared_values,
)
from gymnast.envs.composed import classes_of
from gymnast.envs.environment.construction import has_requests
from gymnast.envs.environment.environment import Environment
from gymnast.envs.environment.solution import can_solve
from gymnast.envs.records.episode import CallRecord, Info
from gymnast.envs.tools import bugs
from gymnast.errors import InfrastructureError, NoSolution
from gymnast.threads import run_blocking
from gymnast.types import Message, ToolCall
from gymnast.visible import visible_line

AGAIN = "again in the same instance"
SECOND = "in a second instance"
IN_TURNS = "in turns with an episode of another instance, on the same row"
WITH_OTHER_ROW = "in turns with an episode of another instance, on another row"

_ROWS = 3  # the seeds of rows, of which two with a solution are played
_OUTSIDE = ("gymnast.envs.builtin.", "gymnast.envs.adapters.mcp.", "gymnast.envs.adapters.openenv.")
_DURATION = re.compile(
    r"""\b\d+\.\d+(e-?\d+)?\s?(s|sec|secs|seconds?|ms|us|µs|ns|min|minutes?)\b
    | \b\d+\s?(ms|us|µs|ns)\b
    | ((seconds|elapsed|duration|took|wall|real|user|sys|_s|_ms)\b["']?\s*[:=]?\s*)\d+\.\d+(e-?\d+)?
    | \b\d+m\d+\.\d+s\b""",
    re.VERBOSE,
)
_ADDRESS = re.compile(r"<[\w.<> ]+ at 0x[0-9a-fA-F]{6,}>")
_COMPARED_BY_CALL = ("tool_calls", "errors", "timings")  # keys of info


class Speaker(Protocol):
    """The messages of an episode, one after another, as a `Solution` has them."""

    async def next(self) -> Message:
        """Return the next message."""

    async def finish(self) -> None:
        """Check the episode after its end."""

    async def close(self) -> None:
        """Let go of what is open."""


class Scripted:
    """Messages that are known before the episode, and empty ones after them."""

    def __init__(self, messages: Sequence[Message] = ()) -> None:
        self._left = list(messages)

    async def next(self) -> Message:
        """Return the next message."""
        return self._left.pop(0) if self._left else Message(role="assistant", content="")

    async def finish(self) -> None:
        """Check nothing: any episode may come of these messages."""

    async def close(self) -> None:
        """Close nothing."""


@dataclass(frozen=True)
class Step:
    """The prompt of an episode, or one message with what the environment made of it.

    Attributes:
        message: The assistant's; None for the prompt.
        calls: The calls of the message, with their results.
        seen: The rest of what has to be equal, by its name in error messages.
        reward: The reward of the turn.
        info: The turn's.
        ended: Whether the episode ended with it.
    """

    message: Message | None
    calls: tuple[CallRecord, ...]
    seen: Mapping[str, Any]
    reward: float = 0.0
    info: Info = field(default_factory=dict)
    ended: bool = False


class RecordedEpisode:
    """An episode that is played step by step and recorded.

    Args:
        env: Plays it.
        seed: The seed of its `reset`.
        speak: Makes the messages, once the episode has begun.
        row: The row of its `reset`; None: the environment draws one.
        most: The number of messages after which it is left; None: it is played to its end.

    Attributes:
        steps: The prompt, then each message with its results.
        error: An exception that ended it.
        over: Whether there are no further steps.
    """

    def __init__(
        self,
        env: Environment,
        seed: int,
        speak: Callable[[Environment], Speaker],
        *,
        row: Mapping[str, Any] | None = None,
        most: int | None = None,
    ) -> None:
        self.env = env
        self.seed = seed
        self.steps: list[Step] = []
        self.error: Exception | None = None
        self.over = False
        self._speak, self._row, self._most = speak, row, most
        self._speaker: Speaker | None = None

    def on(self, env: Environment) -> "RecordedEpisode":
        """Return the same episode, not yet played, in another instance."""
        return RecordedEpisode(env, self.seed, self._speak, row=self._row, most=self._most)

    @property
    def ending(self) -> Step | None:
        """The step that ended it; None where none did."""
        return self.steps[-1] if self.steps and self.steps[-1].ended else None

    @property
    def complete(self) -> bool:
        """Tell if it was played without an exception and without a failure of what it runs on."""
        return self.over and self.error is None and not (self.steps[-1].info.get("failure"))

    @property
    def called(self) -> set[str]:
        """The names of the tools that it called."""
        return {record.call.name for step in self.steps for record in step.calls}

    async def play(self) -> None:
        """Play all of it."""
        while not self.over:
            await self.advance()

    async def advance(self) -> None:
        """Take one step. An exception ends the episode."""
        try:
            await (self._turn() if self.steps else self._begin())
        except Exception as error:
            self.error, self.over = error, True
        if self.over and self._speaker is not None:
            await self._speaker.close()

    async def _begin(self) -> None:
        options = None if self._row is None else {"row": self._row}
        await self.env.areset(seed=self.seed, options=options)
        began = {"the row": dict(self.env.row), "the prompt": self.env.messages}
        self.steps.append(Step(None, (), {**began, "the tools": self.env.tools}))
        self._speaker = self._speak(self.env)

    async def _turn(self) -> None:
        assert self._speaker is not None
        message = await self._speaker.next()
        outcome = await self.env.act(message)
        replies = [each for each in outcome.messages if each["role"] != "tool"]
        info = {name: outcome.info[name] for name in outcome.info if name not in _COMPARED_BY_CALL}
        seen = {
            "the reply": replies,
            "the reward": outcome.reward,
            "terminated": outcome.terminated,
            "truncated": outcome.truncated,
            "info": info,
        }
        ended = outcome.terminated or outcome.truncated
        calls = self.env.episode.turns[-1].calls
        self.steps.append(Step(message, calls, seen, outcome.reward, outcome.info, ended))
        self.over = ended or len(self.steps) - 1 == self._most
        if ended:
            await self._speaker.finish()


@dataclass
class Comparison:
    """The outcome of playing episodes again.

    Attributes:
        equal: What was compared, and found equal.
        missed: What was not compared, with the reason.
        odd: Sentences about differences outside of the author's code, and about what makes
            differences likely.
        played: Whether there was an episode to compare with.
        called: The tools that were called.
    """

    equal: list[str] = field(default_factory=list)
    missed: list[str] = field(default_factory=list)
    odd: list[str] = field(default_factory=list)
    played: bool = False
    called: set[str] = field(default_factory=set)


def compare_solutions(env: Environment) -> Comparison:
    """Play `solve` on a row again in the same instance, in a second one, and in turns.

    Args:
        env: The environment. Where its solution raises at first, nothing is compared: `play_solve`
            reports that.

    Raises:
        AssertionError: Two episodes differ, or a second instance cannot be made.
    """
    found = Comparison()
    if not can_solve(env):
        return found
    values = shared_values(env)
    first: list[RecordedEpisode] = []
    missing = 0
    with bugs.hushed():
        for seed in range(_ROWS):
            episode = RecordedEpisode(env, seed, _solution)
            run_blocking(episode.play())
            first += [episode] if episode.complete else []
            missing += isinstance(episode.error, NoSolution)
            if len(first) == 2:
                break
    if first:
        with _noting_what_breaks(found, "solve"):
            _compare(found, "solve", first, [env], values)
    elif missing == _ROWS:
        found.missed.append("solve, which has no solution for these rows")
    return found


def compare_calls(
    env: Environment, tried: Sequence[RecordedEpisode], solved: Comparison
) -> Comparison:
    """Repeat the calls that `check_env` made of tools which `solve` does not call.

    Each is made again in a second instance. All of them, in one episode, are made again in one
    instance and in turns in two. Where there are neither tools nor a solution, empty messages take
    their place.

    Args:
        env: The environment.
        tried: The episodes in which its tools were called, one each.
        solved: What came of playing `solve` again.

    Raises:
        AssertionError: Two episodes differ, or a second instance cannot be made.
    """
    found = Comparison()
    others = [episode for episode in tried if episode.complete and episode.called - solved.called]
    if not others and (tried or solved.played):
        return found
    what = f"calling {_names(others)}" if others else "saying nothing"
    with _noting_what_breaks(found, what):
        _compare_calls(found, what, env, others)
    return found


def _compare_calls(
    found: Comparison, what: str, env: Environment, others: Sequence[RecordedEpisode]
) -> None:
    values = shared_values(env)
    with _another(env) as second, _another(env) as third:
        with bugs.hushed():
            known = set(vars(second))
            for episode in others:
                again = episode.on(second)
                run_blocking(again.play())
                _is_equal(found, f"calling {_names([episode])}", SECOND, episode, again, values)
                for left in set(vars(second)) - known:  # as after the first calls
                    delattr(second, left)
        stopping = [each for each in others if each.ending is each.steps[1]]
        ordered = [*(each for each in others if each not in stopping), *stopping]
        messages = [step.message for e in ordered for step in e.steps[1:2] if step.message]
        script = [RecordedEpisode(second, seed, lambda _: Scripted(messages)) for seed in (0, 1)]
        with bugs.hushed():
            for episode in script:
                run_blocking(episode.play())
        if script[0].complete:
            _compare(found, what, script, [second, third], values)
        else:
            found.missed.append(f"{what} in one episode")


@contextmanager
def _noting_what_breaks(found: Comparison, what: str) -> Iterator[None]:
    """Within the block, note where what a second instance runs on is not there for two."""
    try:
        yield
    except InfrastructureError as error:
        found.missed.append(f"{what} {SECOND} ({visible_line(str(error)):.200})")


def _solution(env: Environment) -> Speaker:
    return env._episode_runner.solution()


def _compare(
    found: Comparison,
    what: str,
    first: Sequence[RecordedEpisode],
    instances: Sequence[Environment],
    values: Mapping[str, Any],
) -> None:
    """Play one or two recorded episodes again, and compare.

    Args:
        found: The outcome is added to it.
        what: Names the episodes in messages.
        first: The episodes as they were first played, on different rows.
        instances: One or two instances to play in; where there is one, another is made.
        values: The shared values before the first episode.
    """
    episode, *others = [each for each in first if each.complete]
    if (drawn := drawn_from(values, shared_values(episode.env))) is not None:
        found.odd.append(
            f"{what} draws from {drawn}, which all episodes share; draw from self.np_random, which "
            "has the seed of the episode"
        )
    for step in episode.steps:
        for record in step.calls:
            if (address := _ADDRESS.search(record.text)) is not None:
                found.odd.append(
                    f"{_call(record)} returned {address.group()}, an address of this process; "
                    "return a string that describes the object"
                )
    if reads_clock(type(episode.env)):
        time.sleep(1.01 - time.time() % 1)  # so that a time in seconds is another
    found.played = True
    found.called |= {name for each in first for name in each.called}
    one, *more = instances
    results: list[bool] = []

    def played(pairs: Sequence[tuple[RecordedEpisode, Environment]], how: str) -> None:
        repeated = [each.on(env) for each, env in pairs]
        with bugs.hushed():
            run_blocking(_in_turns(repeated))
        for (recorded, _), again in zip(pairs, repeated, strict=True):
            results.append(_is_equal(found, what, how, recorded, again, values))

    played([(episode, one)], AGAIN)
    with _another(one) if not more else _given(more[0]) as other:
        played([(episode, other)], SECOND)
        played([(episode, one), (episode, other)], IN_TURNS)
        if others:
            played([(episode, one), (others[0], other)], WITH_OTHER_ROW)
    if all(results):
        found.equal.append(what)


async def _in_turns(episodes: Sequence[RecordedEpisode]) -> None:
    """Play episodes in turns: a step of each, until all are over."""
    while not all(episode.over for episode in episodes):
        for episode in episodes:
            if not episode.over:
                await episode.advance()


def _is_equal(
    found: Comparison,
    what: str,
    how: str,
    first: RecordedEpisode,
    again: RecordedEpisode,
    values: Mapping[str, Any],
) -> bool:
    """Compare an episode with the same one played again.

    Returns:
        Whether they are equal. Why they are not, or cannot be compared, is added to `found`.

    Raises:
        AssertionError: They differ in what the author's code did.
    """
    broken = again.error if isinstance(again.error, InfrastructureError) else None
    failure = again.steps[-1].info.get("failure") if again.steps else None
    if broken is not None or failure:
        found.missed.append(f"{what} {how} ({visible_line(str(broken or failure)):.200})")
        return False
    equal = True
    for difference in _differences(first, again):
        sentence = (
            f"{what} on the row of seed {first.seed}, played {how}, differs: {difference.text}"
        )
        if difference.outside or difference.duration:
            cause = "by a time alone" if difference.duration else "outside of the environment"
            found.odd.append(visible_line(f"{sentence} (it differs {cause})"))
            equal = False
            continue
        changed = changed_values(values, shared_values(first.env))
        culprits = f" Episodes share {', '.join(changed)}, which changed." if changed else ""
        raise AssertionError(
            visible_line(
                f"{sentence}.{culprits} Only the row, the seed and the actions may make a "
                "difference: keep the state of an episode in `self`, set in `setup`, not in the "
                "class, the module, a default argument or a file; draw random numbers from "
                "self.np_random, and return no clock time, uuid or id()"
            )
        ) from again.error
    return equal


@dataclass(frozen=True)
class Difference:
    """A difference between two episodes.

    Attributes:
        text: The place with both values.
        outside: Whether it is in what code returned that is not the author's.
        duration: Whether two strings differ in nothing but how long something took.
    """

    text: str
    outside: bool = False
    duration: bool = False


def _differences(first: RecordedEpisode, again: RecordedEpisode) -> Iterator[Difference]:
    """The first difference, after those that are durations alone."""
    for number, (one, other) in enumerate(zip(first.steps, again.steps, strict=False)):
        where = f"with message {number}, " if number else ""
        for difference in _of_step(first.env, one, other, where):
            if not difference.duration and (said := _said_otherwise(first, again, number)):
                difference = Difference(f"{said}; {difference.text}")
            yield difference
            if not difference.duration:
                return
    if again.error is not None and first.error is None:
        kind = type(again.error).__name__
        yield Difference(f"it ended with {kind}: {again.error!s:.500}, and not so the first time")


def _of_step(env: Environment, one: Step, other: Step, where: str) -> Iterator[Difference]:
    for first, second in zip(one.calls, other.calls, strict=False):
        if first.call != second.call:
            called = f"{where}{_call(first)} was called, then {_call(second)}"
            yield Difference(called)
            return
        name = f"{where}the result of {_call(first)}"
        text = first_difference(first.text, second.text, name)
        text = text or first_difference(first.result, second.result, name)
        if text is not None:
            durations = _differ_by_duration(first, second)
            yield Difference(text, _is_outside(env, first.call.name), durations)
            if not durations:
                return
    for name, value in one.seen.items():
        text = first_difference(value, other.seen.get(name), f"{where}{name}")
        if text is not None:
            outside = name in ("the reply", "the prompt", "the tools") and _is_program_of_gymnasts(
                env
            )
            yield Difference(text, outside)
            return


def _said_otherwise(first: RecordedEpisode, again: RecordedEpisode, number: int) -> str | None:
    """The first message up to one that was not the same: `solve` itself differed."""
    for place in range(1, number + 1):
        one, other = first.steps[place].message, again.steps[place].message
        if said := first_difference(one, other, f"message {place} of solve"):
            return said
    return None


def _differ_by_duration(first: CallRecord, second: CallRecord) -> bool:
    texts = [(record.text, str(record.result)) for record in (first, second)]
    plain = [tuple(_DURATION.sub(_kept, text) for text in pair) for pair in texts]
    return plain[0] == plain[1]


def _kept(duration: re.Match[str]) -> str:
    """Return the words around the number of a duration, which stand for it."""
    return duration.group(4) or "(a time)"


def _is_outside(env: Environment, name: str) -> bool:
    """Return True if what runs a tool's calls is a server or a sandbox, not the author's code."""
    cls = type(env)
    tool = env.tool_definitions.get(name)
    own = name in cls._class_tools
    function: Any = getattr(cls, name, None) if own else tool and tool.function
    if function is not None:
        modules = [inspect.unwrap(function).__module__]
    else:
        modules = [each.call_tool.__module__ for each in (cls, *classes_of(cls))]
    # Code that was typed at a prompt may have no module.
    return any((module or "").startswith(_OUTSIDE) for module in modules)


def _is_program_of_gymnasts(env: Environment) -> bool:
    cls = type(env)
    return has_requests(cls) and cls.next_request.__module__.startswith("gymnast.")


@contextmanager
def _another(env: Environment) -> Iterator[Environment]:
    """Another instance, made as this one was.

    Raises:
        AssertionError: It cannot be made.
    """
    arguments, settings = env._construction
    try:
        made = type(env)(*arguments, **settings)
    except InfrastructureError:
        raise
    except Exception as error:
        raise AssertionError(
            f"a second instance of {type(env).__name__} cannot be made: {type(error).__name__}: "
            f"{error!s:.500}. Each episode that is played at the same time has an instance of its "
            "own: open what only one can have in `setup`, and close it in `cleanup`"
        ) from error
    try:
        for name in ("rows", "max_turns", "episode_timeout_s", "system_prompt"):
            setattr(made, name, getattr(env, name))  # which may have been set after the making
        runner, other = env._episode_runner, made._episode_runner
        other.stand_in, other.follows_branches = runner.stand_in, runner.follows_branches
        yield made
    finally:
        made.close()


@contextmanager
def _given(env: Environment) -> Iterator[Environment]:
    yield env


def _names(episodes: Sequence[RecordedEpisode]) -> str:
    return ", ".join(name for episode in episodes for name in sorted(episode.called))


def _call(record: CallRecord) -> str:
    call: ToolCall = record.call
    given = ", ".join(f"{name}={value!r:.60}" for name, value in call.arguments.items())
    return f"{call.name}({given})"
