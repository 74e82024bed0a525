"""check_env: whether an environment keeps the contracts of Gymnasium and Gymnast.

It runs before training and drives real episodes with real tokens; every tool is called with
arguments made from its schema, and episodes are played again, which must come out as they did. It
cannot say what a reward means, or whether a policy can learn.
"""

import inspect
import json
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env as gymnasium_check_env

from gymnast.envs.checking.blocking import LoopWatch
from gymnast.envs.checking.differences import first_difference
from gymnast.envs.checking.example_arguments import NoExample, example_arguments
from gymnast.envs.checking.methods import calls_any_method, forgotten_tools, misspelt_hooks
from gymnast.envs.checking.policies import play_idle, play_solve
from gymnast.envs.checking.repeats import (
    RecordedEpisode,
    Scripted,
    compare_calls,
    compare_solutions,
)
from gymnast.envs.checking.report import CheckReport, ToolTried, merged
from gymnast.envs.checking.saved_rows import changes_by_saving
from gymnast.envs.environment.construction import has_requests, has_reward
from gymnast.envs.environment.environment import Environment, require_renderer
from gymnast.envs.environment.hooks import Hooks
from gymnast.envs.environment.tokens.spaces import TokenIds
from gymnast.envs.mixture import members_of
from gymnast.envs.records.episode import Info
from gymnast.envs.tools import bugs
from gymnast.envs.tools.definition import Tool
from gymnast.errors import GymnastError
from gymnast.threads import run_blocking
from gymnast.types import Message, StopReason
from gymnast.visible import visible

_SEED = 0
_STEPS = 3  # of an episode of random tokens, at most

Seen = dict[str, Any]  # the results of a call of reset or step, by their names in messages


class _End(NamedTuple):
    """An episode that ended: the sum of its rewards, and the info of its last step."""

    reward: float
    info: Info


def check_env(env: gymnasium.Env[Any, Any]) -> CheckReport:
    """Check an environment by driving a few episodes.

    Every tool is called for real: one that sends mail sends mail. On a few rows nothing is done
    and, if the class has a `solve`, what it says is played. An episode of `solve`, and calls of the
    tools that it leaves out, are played again in the same instance, in a second one, and in turns
    with episodes of another instance: results, replies and rewards have to be equal. Of a
    `Mixture`, each environment is checked.

    Args:
        env: An `Environment` with a renderer, and rows or a `sample_row` of its own.

    Returns:
        A report: the prompt as a model reads it, the tools' answers, the rewards.

    Raises:
        AssertionError: It breaks a contract; the message says where, and notes are about methods
            that may be misspelt hooks.
        GymnastError: A hook raised an exception, or the environment lacks rows or a renderer.
    """
    environment = env.unwrapped
    assert isinstance(environment, Environment), (
        f"{type(environment).__name__} is not a subclass of gymnast.envs.Environment"
    )
    members = members_of(environment)
    runners = [member._episode_runner for member in members]
    for runner in runners:
        runner.stand_in, runner.follows_branches = _goes_on, True
    try:
        report = merged([_noting_misspelt_hooks(member) for member in members])
        if environment not in members:
            gymnasium_check_env(environment, skip_render_check=True)
        return report
    finally:
        for runner in runners:
            runner.stand_in, runner.follows_branches = None, False


async def _goes_on(messages: Any, tools: Any) -> Message:
    """What hooks hear that ask the agent, which nobody is here."""
    return {"role": "assistant", "content": "Go on."}


def _noting_misspelt_hooks(environment: Environment) -> CheckReport:
    """The report; an error has notes about methods that may be hooks, which may be its cause."""
    odd = misspelt_hooks(type(environment))
    try:
        with LoopWatch(environment) as watch:
            report = _checked(environment)
    except (AssertionError, GymnastError) as error:
        for sentence in odd:
            error.add_note(f"odd: {sentence}")
        raise
    return replace(report, odd=(*odd, *watch.odd, *report.odd))


def _checked(environment: Environment) -> CheckReport:
    renderer = require_renderer(environment)
    _check_signature(environment)
    prompt = _check_reset(environment)
    offered = _offered(environment)
    _check_schemas(environment)
    _check_scored(environment)
    odd = _check_forgotten(environment)
    known = set(vars(environment))
    solved_again = compare_solutions(environment)
    _forget(environment, known)
    environment.reset(seed=_SEED)
    tried, ends, episodes = _check_tools(environment)
    actions = _random_actions(environment)
    ends += [*_check_garbage(environment, actions), _check_answer(environment)]
    _check_rewards(ends)
    _check_repeats(environment, actions)
    gymnasium_check_env(environment, skip_render_check=True)
    called_again = compare_calls(environment, episodes, solved_again)
    rewards = tuple(end.reward for end in ends if not end.info.get("no_reward"))
    idle = play_idle(environment)
    solved = play_solve(environment, idle, rewards)
    text = renderer.tokenizer.decode(prompt)
    odd += [*solved_again.odd, *called_again.odd, *changes_by_saving(environment)]
    compared = (*solved_again.equal, *called_again.equal)
    missed = [*solved_again.missed, *called_again.missed]
    missed += [
        f"calling {one.call}, for which there are no arguments"
        for one in tried
        if one.answer is None and one.call.partition("(")[0] not in solved_again.called
    ]
    return CheckReport(
        text,
        len(prompt),
        tuple(tried),
        rewards,
        idle,
        solved,
        offered,
        tuple(odd),
        compared,
        tuple(missed),
    )


def _check_forgotten(env: Environment) -> list[str]:
    """No method lacks only its `@tool`; returns what is odd where it may be called by any name."""
    cls = type(env)
    names = forgotten_tools(cls, env.tool_definitions)
    if not names:
        return []
    several, listed = len(names) > 1, ", ".join(names)
    sentence = (
        f"{listed} {'are no tools' if several else 'is no tool'}: public, with types and a "
        f"docstring, and nothing in the class calls {'them' if several else 'it'}. Write @tool "
        f"above {'each' if several else 'it'}, or begin {'their names' if several else 'its name'} "
        "with an underscore"
    )
    if calls_any_method(cls):  # by getattr, perhaps
        return [sentence]
    none = "" if env.tool_definitions else " (the environment has no tools)"
    raise AssertionError(f"{sentence}{none}")


def _check_signature(env: Environment) -> None:
    """`reset` takes a seed and options, as Gymnasium's does."""
    taken = inspect.signature(env.reset).parameters
    missing = [name for name in ("seed", "options") if name not in taken]
    assert not missing or any(p.kind is p.VAR_KEYWORD for p in taken.values()), (
        f"{type(env).__name__}.reset takes no {' and no '.join(missing)}. Write reset(self, *, "
        "seed=None, options=None), or do the same in setup(row)"
    )


def _check_reset(env: Environment) -> TokenIds:
    """The same seed begins the same episode again; returns the prompt."""
    first = _begun(env, None)
    ids, info = first["the prompt's ids"], first["info"]
    _check_observation(env, ids, "reset")
    _check_info(info, "reset", ("stop_ids", "tokens_left", "timings"))
    assert len(ids) > 0, "reset returned an empty prompt"
    assert info["stop_ids"], "info['stop_ids'] is empty: no action could end"
    _check_equal(first, _begun(env, None), "two resets with the same seed")
    row = {"row": dict(env.row)}
    _check_equal(_begun(env, row), _begun(env, row), "two resets with the same row and seed")
    _begun(env, {**row, "hint": True})  # what `hint` returns has to make a prompt
    prompt: TokenIds = ids
    return prompt


def _offered(env: Environment) -> tuple[str, ...] | None:
    """The names of the tools that a program offers in its first request."""
    if not has_requests(type(env)):
        return None
    return tuple(schema["function"]["name"] for schema in env.tools)


def _begun(env: Environment, options: dict[str, Any] | None) -> Seen:
    ids, info = env.reset(seed=_SEED, options=options)
    return {"row": dict(env.row), "messages": env.messages, "the prompt's ids": ids, "info": info}


def _check_schemas(env: Environment) -> None:
    """The tools' schemas and the conversation are plain JSON."""
    names = [schema["function"]["name"] for schema in env.tools]
    assert len(set(names)) == len(names), f"two tools share a name: {names}"
    _check_json(env.tools, "the tools' schemas")
    _check_json(env.messages, "messages")


def _check_scored(env: Environment) -> None:
    """The class scores its episodes."""
    cls = type(env)
    assert has_reward(cls), (
        f"{cls.__name__} has no reward, so every episode gets 0. Write reward(self, episode) or "
        "turn_reward(self, turn), or pass reward=... to from_tools; if only the `rewards` of a "
        "run score its episodes, return 0.0"
    )


def _check_tools(env: Environment) -> tuple[list[ToolTried], list[_End], list[RecordedEpisode]]:
    """Call each tool in an episode of its own, which an empty answer ends."""
    row, known = dict(env.row), set(vars(env))
    tried, ends, episodes = [], list[_End](), []
    for name, tool in env.tool_definitions.items():
        try:
            arguments = example_arguments(tool)
        except NoExample as error:
            tried.append(ToolTried(tool.signature, None, str(error)))
            continue
        offered = {"tools": [name]} if "tools" in row else {}  # errors show the row: add nothing
        function = {"name": name, "arguments": arguments}
        call: dict[str, Any] = {"id": "call", "type": "function", "function": function}
        message = Message(role="assistant", content="", tool_calls=[call])
        speak = partial(_saying, message)
        episode = RecordedEpisode(env, _SEED, speak, row={**row, **offered}, most=2)
        with bugs.hushed():
            run_blocking(episode.play())
        if episode.error is not None:
            raise episode.error
        ended = _ends(episode)
        ends += ended
        tried.append(_tried(env, tool, ended))
        episodes.append(episode)
        _check_json(env.messages, "messages")
        _forget(env, known)
    return tried, ends, episodes


def _forget(env: Environment, known: set[str]) -> None:
    """Delete attributes that an episode left, which would hide that a tool or hook needs them."""
    for left in set(vars(env)) - known:
        delattr(env, left)


def _saying(message: Message, env: Environment) -> Scripted:
    """Say a call and then, unless it ended the episode, nothing."""
    return Scripted([message])


def _ends(episode: RecordedEpisode) -> list[_End]:
    """The end of an episode, if it has one."""
    if (ending := episode.ending) is None:
        return []
    return [_End(sum(step.reward for step in episode.steps), ending.info)]


def _tried(env: Environment, tool: Tool, ends: list[_End]) -> ToolTried:
    """The result of the call; a bug in the tool breaks the contract."""
    failures = "; ".join(str(end.info.get("failure")) for end in ends)
    assert env.episode.calls, f"calling {tool.name} broke the episode: {failures}"
    record = env.episode.calls[0]
    given = ", ".join(f"{name}={_as_json(value)}" for name, value in record.call.arguments.items())
    call = f"{tool.name}({given})"
    if record.error is not None and record.error.kind == "bug":
        problem = record.error.traceback or record.error.message.removeprefix(f"{tool.name}: ")
        raise AssertionError(visible(f"{call} failed because of a bug in the tool: {problem}"))
    stops = ["ends the episode"] if tool.options.stop and record.error is None else []
    empty = ["it returned None"] if record.result is None and record.error is None else []
    return ToolTried(call, record.text, ", ".join(stops + empty))


def _random_actions(env: Environment) -> list[TokenIds]:
    env.action_space.seed(_SEED)
    return [env.action_space.sample() for _ in range(_STEPS)]


def _check_garbage(env: Environment, actions: list[TokenIds]) -> list[_End]:
    """Random tokens never make `step` raise, and appended tokens stay within the limits."""
    prompt, info = env.reset(seed=_SEED)
    lengths, branch, total = {0: len(prompt)}, 0, 0.0  # lengths by context
    for action in actions:
        before = info["tokens_left"]
        action = action[:before]
        observation, reward, terminated, truncated, info = env.step(action)
        _check_observation(env, observation, "step")
        _check_step(reward, terminated, truncated, info)
        total += reward
        lengths[branch] += len(action)
        left, following = info["tokens_left"], int(info.get("branch", branch))
        length = lengths.get(following, len(info.get("prompt_ids", ()))) + len(observation)
        lengths[following] = length
        assert env.context_length is None or length <= env.context_length, (
            f"{length} tokens exceed context_length={env.context_length}"
        )
        expected = max(0, before - len(action) - len(observation))
        assert has_requests(type(env)) or left == expected, (
            f"tokens_left went from {before} to {left} with {len(action)} sampled and "
            f"{len(observation)} appended tokens"
        )
        branch = following
        _check_json(env.messages, "messages")
        if terminated or truncated:
            return [_End(total, info)]
    return []


def _check_answer(env: Environment) -> _End:
    """An answer to which nothing is said or asked ends the episode, and `step` raises after it."""
    _, info = env.reset(seed=_SEED)
    action = np.array(info["stop_ids"][:1], dtype=np.int64)
    terminated = truncated = False
    total = 0.0
    goes_on = has_requests(type(env)) or type(env).respond is not Hooks.respond
    while not (terminated or truncated):  # one turn, unless something is said or asked
        observation, reward, terminated, truncated, info = env.step(action)
        _check_step(reward, terminated, truncated, info)
        total += reward
        assert terminated or goes_on, (
            f"an empty answer ended with {info['stop_reason']}, not as answered"
        )
    assert len(observation) == 0 or info["stop_reason"] != StopReason.answered, (
        f"{len(observation)} tokens were appended after the answer"
    )
    _check_json(info.get("metrics"), "info['metrics']")
    try:
        env.step(action)
    except ResetNeeded:
        return _End(total, info)
    raise AssertionError("step after the end did not raise gymnasium's ResetNeeded")


def _check_rewards(ends: list[_End]) -> None:
    """Not every episode has the reward None, which means that it cannot be judged."""
    assert not all(end.info.get("no_reward") for end in ends), (
        f"reward returned None after each of {len(ends)} episodes, and such "
        "episodes are never trained on. Is a `return` missing?"
    )


def _check_repeats(env: Environment, actions: list[TokenIds]) -> None:
    """Equal actions after equal seeds give equal rewards and infos."""
    answer = np.array(require_renderer(env).stop_ids[:1], dtype=np.int64)
    for played in (actions, [answer]):
        first, second = _steps(env, played), _steps(env, played)
        for number, (a, b) in enumerate(zip(first, second, strict=False), start=1):
            _check_equal(a, b, f"step {number} of two episodes with the same seed and actions")


def _steps(env: Environment, actions: list[TokenIds]) -> list[Seen]:
    """The results of each step, until the episode ends."""
    _, info = env.reset(seed=_SEED)
    seen: list[Seen] = []
    for action in actions:
        ids, reward, terminated, truncated, info = env.step(action[: info["tokens_left"]])
        ends = {"terminated": terminated, "truncated": truncated}
        seen.append({"reward": reward, **ends, "info": info, "the observation's ids": ids})
        if terminated or truncated:
            break
    return seen


def _check_equal(first: Seen, second: Seen, what: str) -> None:
    for name in first:
        differs = first_difference(first[name], second[name], name)
        assert differs is None, (
            f"{what} differ: {differs}. Only the row, the actions and the seed may make a "
            "difference; keep the state of an episode in `self`, set in `setup`, and draw random "
            "numbers from self.np_random, or from sample_row's rng"
        )


def _check_observation(env: Environment, ids: Any, what: str) -> None:
    assert isinstance(ids, np.ndarray) and ids.dtype == np.int64 and ids.ndim == 1, (
        f"{what} returned {type(ids).__name__} {ids!r:.100}, not a flat numpy.int64 array"
    )
    assert ids in env.observation_space, f"{what} returned ids outside of the vocabulary"


def _check_step(reward: Any, terminated: Any, truncated: Any, info: Any) -> None:
    assert isinstance(reward, float) and np.isfinite(reward), f"step returned reward {reward!r}"
    assert not (terminated and truncated), "step returned both terminated and truncated"
    keys = ("stop_ids", "tokens_left", "timings", "tool_calls", "errors", "stop_reason")
    _check_info(info, "step", keys)
    ended = info["stop_reason"] is not None
    assert ended == (terminated or truncated), (
        f"terminated={terminated}, truncated={truncated}, but stop_reason={info['stop_reason']}"
    )


def _check_info(info: Any, what: str, keys: tuple[str, ...]) -> None:
    missing = [key for key in keys if key not in info]
    assert not missing, f"the info of {what} lacks {', '.join(missing)}"


def _check_json(value: Any, what: str) -> None:
    try:
        json.dumps(value, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise AssertionError(f"{what} cannot be written as JSON: {error}") from error


def _as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
