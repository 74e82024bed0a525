"""`gymnast demos`: writes demonstrations, episodes that a model can learn from."""

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from gymnast.commands.completion.words import complete_environment
from gymnast.commands.demos_report import fail_if_none, left_out, report
from gymnast.commands.options import HANDED_OVER, SETTING, refuse_options
from gymnast.commands.output import no_input, say, waiting
from gymnast.errors import ConfigError
from gymnast.threads import run_blocking

if TYPE_CHECKING:
    from gymnast.agents.chat import ChatAgent
    from gymnast.trainers.conversations.many import Demonstration, Play
    from gymnast.types import Trajectory

ROWS = 64
KEY = "OPENAI_API_KEY"
OPTIONS = ["--rows", "--data", "--seed", "--from", "--min-reward", "--out"]
OPTIONS += ["--chat", "--base-url", "--api-key-env", "--no-api-key"]

Env = Annotated[
    str | None,
    typer.Argument(
        metavar="ENV",
        help="A name that `gymnast envs` lists, module:Class or path/to/file.py:Class.",
        autocompletion=complete_environment,
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE", help="Arguments of its constructor, such as worked_turns=0."
    ),
]
Rows = Annotated[
    int | None,
    typer.Option(min=1, help=f"How many rows; by default {ROWS} of its own, or all of --data."),
]
Data = Annotated[
    str | None, typer.Option(help="Rows to play: a .jsonl, .json, .csv or .parquet file.")
]
Seed = Annotated[int | None, typer.Option(help="Seed of its own rows and of the episodes.")]
Run = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="RUN",
        help="Take the rollouts that a run's training has saved (a folder, or one file of "
        "rollouts) instead of playing.",
    ),
]
Chat = Annotated[
    str | None,
    typer.Option(metavar="MODEL", help="Let a model behind an endpoint play instead of solve."),
]
BaseUrl = Annotated[
    str | None, typer.Option(help="The URL of --chat's endpoint; by default OpenAI's.")
]
KeyName = Annotated[
    str | None,
    typer.Option(
        help=f"The environment variable that holds the key of --chat's endpoint; by default {KEY}."
    ),
]
NoKey = Annotated[bool, typer.Option("--no-api-key", help="Send no key to --chat's endpoint.")]
MinReward = Annotated[float, typer.Option(help="Keep the episodes whose reward is at least this.")]
Out = Annotated[str, typer.Option(help="The file to write.")]


class _Endpoint(NamedTuple):
    """Who plays in place of `solve`, as the options say; without a model nobody does."""

    model: str | None
    base_url: str | None
    api_key_env: str | None
    no_api_key: bool

    def given(self) -> dict[str, Any]:
        """The options by name; those that are not given are None."""
        names = ("--chat", "--base-url", "--api-key-env", "--no-api-key")
        return dict(zip(names, (*self[:3], self.no_api_key or None), strict=True))


demos = typer.Typer()


@demos.command(name="demos", context_settings=HANDED_OVER)
def write_demos(
    environment: Env = None,
    settings: Settings = None,
    rows: Rows = None,
    data: Data = None,
    seed: Seed = None,
    run: Run = None,
    chat: Chat = None,
    base_url: BaseUrl = None,
    api_key_env: KeyName = None,
    no_api_key: NoKey = False,
    min_reward: MinReward = 1.0,
    out: Out = "demos.parquet",
) -> None:
    """Write demonstrations: episodes that the environment's solve plays, or the best of a run."""
    given = [environment or "", *(settings or [])]
    refuse_options(given, OPTIONS, lambda name: name.strip("-") or None)
    _check_out(out, min_reward, {"--data": data, "--from": run})
    endpoint = _Endpoint(chat, base_url, api_key_env, no_api_key)
    if run is not None:
        own = {"ENV": environment, "--rows": rows, "--data": data, "--seed": seed}
        for name in [name for name, value in (own | endpoint.given()).items() if value is not None]:
            raise ConfigError(f"--from takes the episodes of a run; leave {name} out")
        _keep_saved(run, min_reward, out)
        return
    if environment is None:
        raise ConfigError("ENV: name an environment (`gymnast envs` lists some), or --from RUN")
    agent = _chat_agent(endpoint)
    with waiting(f"playing {environment}"), no_input():
        played = _played(environment, settings or [], rows, data, seed or 0, agent)
    if agent is not None:
        used = agent.usage
        tokens = f"{used.prompt_tokens} prompt and {used.completion_tokens} completion tokens"
        say(f"{chat}: {used.requests} requests, {tokens}")
    report(played, min_reward)
    _keep_played(played, min_reward, out)


def _check_out(out: str, min_reward: float, inputs: "dict[str, str | None]") -> None:
    """Check where demonstrations go, before any is played."""
    from gymnast.trainers.demonstrations.settings import check_min_reward

    if not out.endswith(".parquet"):
        raise ConfigError(f"--out: must end in .parquet, got {out!r}")
    check_min_reward(min_reward, "--min-reward")
    path = Path(out)
    for name, given in inputs.items():
        if given is not None and path.exists() and path.resolve() == Path(given).resolve():
            raise ConfigError(f"--out: {out} is the file of {name}; name another")
    if path.is_dir():
        raise ConfigError(f"--out: {out} is a folder; name a file")
    there = next(folder for folder in (path.parent, *path.parent.parents) if folder.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise ConfigError(f"--out: {there} is no folder that can be written; name a file elsewhere")


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
    from gymnast.trainers.config.task_rows import row_sampler
    from gymnast.trainers.config.worked_rows import has_rows
    from gymnast.trainers.config.yaml_reader import with_overrides
    from gymnast.trainers.conversations.many import play_many
    from gymnast.trainers.conversations.play import play_solution
    from gymnast.trainers.data.row_checks import check_rows
    from gymnast.trainers.data.row_files import load_rows
    from gymnast.trainers.data.rows import sample_distinct

    if agent is None:
        require_solve(find(environment), "demos")
    given: dict[str, Any] = with_overrides({}, list(settings), form=SETTING)
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
    if agent is None:
        return run_blocking(play_many(make_env, chosen, play_solution, seed=seed))
    try:
        return run_blocking(play_many(make_env, chosen, _play_by(agent), seed=seed))
    except ConfigError as error:  # the endpoint will not answer
        raise _of_an_option(error) from None


def _chat_agent(endpoint: _Endpoint) -> "ChatAgent | None":
    """The agent that the options name; None where they name none."""
    from gymnast.agents.chat import ChatAgent

    if endpoint.model is None:
        for name in [name for name, value in endpoint.given().items() if value is not None]:
            raise ConfigError(f"{name}: is that of --chat's endpoint; name its model with --chat")
        return None
    if endpoint.no_api_key and endpoint.api_key_env is not None:
        raise ConfigError("--api-key-env names a key and --no-api-key none; leave one of them out")
    variable = None if endpoint.no_api_key else endpoint.api_key_env or KEY
    try:
        agent = ChatAgent(endpoint.model, base_url=endpoint.base_url, api_key_env=variable)
    except ConfigError as error:
        raise _of_an_option(error) from None
    if variable is not None and not os.environ.get(variable):
        raise ConfigError(
            f"--api-key-env: the environment variable {variable} is not set; set it, name another "
            "one, or say --no-api-key if the endpoint asks for none"
        )
    return agent


def _of_an_option(error: ConfigError) -> ConfigError:
    """An error of the chat client, which names the client's setting, by the option's name."""
    name, colon, rest = str(error).partition(":")
    options = {"model": "--chat", "base_url": "--base-url", "api_key_env": "--api-key-env"}
    rest = rest.replace("with api_key_env", "with --api-key-env")
    return ConfigError(f"{options.get(name, name)}{colon}{rest}")


def _play_by(agent: "ChatAgent") -> "Play":
    from gymnast.trainers.conversations.play import play_messages

    async def play(env: Any, row: Any, *, seed: int) -> "Trajectory":
        return await play_messages(env, agent.speaker(), row, seed=seed)

    return play


def _keep_played(played: "Sequence[Demonstration]", min_reward: float, out: str) -> None:
    """Write the best of the episodes that were played."""
    from gymnast.trainers.saving.rollout_files import write_rollouts

    kept = [[each.trajectory] for each in played if each.trajectory and each.kept(min_reward)]
    ended = [each.trajectory for each in played if each.trajectory is not None]
    fail_if_none(len(kept), len(played), len(ended), min_reward, out)
    write_rollouts(out, kept)
    say(f"{_counted(len(kept))} in {out}{left_out(played, min_reward)}")


def _keep_saved(run: str, min_reward: float, out: str) -> None:
    """Write the best of the rollouts that a run has saved."""
    from gymnast.trainers.saving.rollout_files import write_saved
    from gymnast.trainers.saving.saved_runs import load_rollouts, read_file

    saved = read_file(run) if Path(run).is_file() else load_rollouts(run)
    kept = [each for each in saved if _is_good(each.trajectory, min_reward)]
    fail_if_none(len(kept), len(saved), len(saved), min_reward, out)
    write_saved(out, kept)
    say(f"{_counted(len(kept), len(saved))} in {out}")


def _counted(kept: int, of: int | None = None) -> str:
    """How many there are, and of how many episodes."""
    noun, verb = ("demonstration", "is") if kept == 1 else ("demonstrations", "are")
    among = "" if of is None else f", of {of} episode{'' if of == 1 else 's'},"
    return f"{kept} {noun}{among} {verb}"


def _is_good(trajectory: "Trajectory", min_reward: float) -> bool:
    return not trajectory.no_reward and trajectory.reward >= min_reward
