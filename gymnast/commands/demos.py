"""`gymnast demos`: writes demonstrations, episodes that a model can learn from."""

from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from gymnast.commands.options import HANDED_OVER, refuse_options
from gymnast.commands.output import say, waiting
from gymnast.errors import ConfigError
from gymnast.threads import run_blocking

if TYPE_CHECKING:
    from gymnast.agents.chat import ChatAgent
    from gymnast.trainers.conversations.many import Demonstration, Play
    from gymnast.types import Trajectory

ROWS = 64
OPTIONS = ["--rows", "--data", "--seed", "--from", "--min-reward", "--out"]
OPTIONS += ["--chat", "--base-url", "--api-key-env"]

demos = typer.Typer()


@demos.command(name="demos", context_settings=HANDED_OVER)
def write_demos(
    environment: Annotated[
        str | None,
        typer.Argument(
            metavar="ENV", help="A name of `gymnast envs`, module:Class or path/to/file.py:Class."
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE", help="Arguments of its constructor, such as worked_turns=0."
        ),
    ] = None,
    rows: Annotated[
        int | None,
        typer.Option(
            min=1, help=f"How many rows: of its own, by default {ROWS}; of --data, by default all."
        ),
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="Its rows: a .jsonl, .json, .csv or .parquet file.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Of its own rows and the episodes.")] = None,
    run: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="RUN",
            help="Take the rollouts that a run's training has saved (a folder, or one file of "
            "rollouts) instead of playing.",
        ),
    ] = None,
    chat: Annotated[
        str | None,
        typer.Option(metavar="MODEL", help="Let a model of an endpoint play, in place of solve."),
    ] = None,
    base_url: Annotated[
        str | None, typer.Option(help="Of --chat's endpoint; by default OpenAI's.")
    ] = None,
    api_key_env: Annotated[
        str, typer.Option(help="Which environment variable holds the key of --chat's endpoint.")
    ] = "OPENAI_API_KEY",
    min_reward: Annotated[
        float, typer.Option(help="Keep the episodes whose reward is at least this.")
    ] = 1.0,
    out: Annotated[str, typer.Option(help="The file to write.")] = "demos.parquet",
) -> None:
    """Write demonstrations: episodes that the environment's solve plays, or the best of a run."""
    refuse_options(
        [environment or "", *(settings or [])], OPTIONS, lambda name: name.strip("-") or None
    )
    if not out.endswith(".parquet"):
        raise ConfigError(f"--out: must end in .parquet, got {out!r}")
    from gymnast.trainers.demonstrations.settings import check_min_reward

    check_min_reward(min_reward, "--min-reward")
    if run is not None:
        own = {"ENV": environment, "--rows": rows, "--data": data, "--seed": seed, "--chat": chat}
        for name in [name for name, value in own.items() if value is not None]:
            raise ConfigError(f"--from takes the episodes of a run; leave {name} out")
        _keep_saved(run, min_reward, out)
        return
    if environment is None:
        raise ConfigError("ENV: name an environment (`gymnast envs` lists some), or --from RUN")
    if base_url is not None and chat is None:
        raise ConfigError("--base-url: is that of --chat's endpoint; name its model with --chat")
    with waiting(f"playing {environment}"):
        endpoint = {"base_url": base_url, "api_key_env": api_key_env}
        agent = None if chat is None else _chat_agent({"model": chat, **endpoint})
        played = _played(environment, settings or [], rows, data, seed or 0, agent)
    if agent is not None:
        used = agent.usage
        tokens = f"{used.prompt_tokens} prompt and {used.completion_tokens} completion tokens"
        say(f"{chat}: {used.requests} requests, {tokens}")
    _report(played, min_reward)
    kept = [[each.trajectory] for each in played if each.trajectory and each.kept(min_reward)]
    if not kept:
        _nothing_kept(len(played), min_reward, out)
    from gymnast.trainers.saving.rollout_files import write_rollouts

    write_rollouts(out, kept)
    say(f"{len(kept)} demonstrations are in {out}")


def _played(
    environment: str,
    settings: Sequence[str],
    count: int | None,
    data: str | None,
    seed: int,
    agent: "ChatAgent | None",
) -> "list[Demonstration]":
    """Play the environment's `solve`, or an agent, on rows of its own or of a file."""
    from gymnast.envs import make
    from gymnast.envs.environment.solution import require_solve
    from gymnast.envs.registry import find
    from gymnast.trainers.base.seeds import derive
    from gymnast.trainers.config.task_rows import check_rows, row_sampler
    from gymnast.trainers.config.worked_rows import has_rows
    from gymnast.trainers.config.yaml_reader import with_overrides
    from gymnast.trainers.conversations.many import play_many
    from gymnast.trainers.conversations.play import play_solution
    from gymnast.trainers.data.row_files import load_rows
    from gymnast.trainers.data.rows import sample_distinct

    if agent is None:
        require_solve(find(environment), "demos")
    given: dict[str, Any] = with_overrides({}, list(settings))
    if data is not None:
        given["rows"] = load_rows(data)
    make_env = partial(make, environment, **given)
    first = make_env()
    if data is not None:
        check_rows(first.rows or (), first, data)
    if has_rows(type(first)) and data is None:
        sampler = row_sampler(first)
        sample_seed = derive(seed, "demonstrations")  # not those that evaluations of a run draw
        chosen = sample_distinct(sampler, count or ROWS, seed=sample_seed, key="--rows")
    elif first.rows is not None:
        chosen = [first.rows[i] for i in range(min(count or len(first.rows), len(first.rows)))]
    else:
        raise ConfigError(
            f"{environment}: makes no rows of its own (it has no sample_row), and an episode "
            "begins from one; name some with --data rows.jsonl"
        )
    play = play_solution if agent is None else _play_by(agent)
    return run_blocking(play_many(make_env, chosen, play, seed=seed))


def _chat_agent(settings: "dict[str, Any]") -> "ChatAgent":
    from gymnast.agents.chat import make_chat_agent

    try:
        return make_chat_agent(settings)
    except ConfigError as error:
        message = str(error).removeprefix("agent.")
        name, colon, rest = message.partition(":")
        option = {"model": "--chat"}.get(name, "--" + name.replace("_", "-"))
        raise ConfigError(f"{option}{colon}{rest}") from None


def _play_by(agent: "ChatAgent") -> "Play":
    from gymnast.trainers.conversations.play import play_messages

    async def play(env: Any, row: Any, *, seed: int) -> "Trajectory":
        return await play_messages(env, agent.speaker(), row, seed=seed)

    return play


def _report(played: "Sequence[Demonstration]", min_reward: float) -> None:
    """Print a line for each row that is not kept, and a summary."""
    from gymnast.trainers.conversations.many import tools_called

    for index, each in enumerate(played):
        if not each.kept(min_reward):
            say(f"row {index}: {_why(each, min_reward)}", err=True)
    ended = [each.trajectory for each in played if each.trajectory is not None]
    called = sum((tools_called(trajectory) for trajectory in ended), Counter[str]())
    summary = [f"played {len(played)} rows: {len(ended)} to their end"]
    if ended:
        turns = [len(trajectory.turns) for trajectory in ended]
        rewards = [trajectory.reward for trajectory in ended if not trajectory.no_reward]
        if rewards:
            summary.append(f"mean reward {sum(rewards) / len(rewards):.3g}")
        summary.append(f"{sum(turns) / len(turns):.3g} turns (at most {max(turns)})")
        tools = ", ".join(f"{name} {count}" for name, count in sorted(called.items()))
        summary.append(f"calls: {tools or 'none'}")
    say("; ".join(summary))


def _why(each: "Demonstration", min_reward: float) -> str:
    """Why an episode is not kept."""
    ended = each.trajectory
    if ended is None:
        return each.problem
    earned = "no reward" if ended.no_reward else f"reward {ended.reward:g}"
    how = f"{ended.stop_reason} after {len(ended.turns)} turns"
    return f"{earned}, not {min_reward:g} ({how}; row: {dict(each.row)!r:.500})"


def _keep_saved(run: str, min_reward: float, out: str) -> None:
    """Write the best of the rollouts that a run has saved."""
    from gymnast.trainers.saving.rollout_files import read_rollouts, write_saved
    from gymnast.trainers.saving.saved_runs import load_rollouts

    saved = read_rollouts(run) if Path(run).is_file() else load_rollouts(run)
    kept = [each for each in saved if _is_good(each.trajectory, min_reward)]
    if not kept:
        _nothing_kept(len(saved), min_reward, out)
    write_saved(out, kept)
    say(f"{len(kept)} demonstrations, of {len(saved)} episodes, are in {out}")


def _is_good(trajectory: "Trajectory", min_reward: float) -> bool:
    return not trajectory.no_reward and trajectory.reward >= min_reward


def _nothing_kept(count: int, min_reward: float, out: str) -> None:
    say(
        f"failed: none of {count} episodes has a reward of at least {min_reward:g}, so {out} is "
        "not written; --min-reward lowers what is asked",
        err=True,
    )
    raise typer.Exit(1)
