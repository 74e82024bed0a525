"""`gymnast envs` and `gymnast check`: which environments there are, and what one does."""

import inspect
import re
from typing import Annotated, Any

import typer

from gymnast.commands.completion.words import complete_environment
from gymnast.commands.options import HANDED_OVER, SETTING, refuse_options
from gymnast.commands.output import say
from gymnast.errors import UsageError

environments = typer.Typer()


@environments.command()
def envs() -> None:
    """List the environments that are installed, and adapters, with where each comes from."""
    from gymnast.envs.installed import adapters
    from gymnast.envs.installed import environments as installed

    listed = [*installed(), *adapters()]
    width = max(len(each.name) for each in listed)
    for each in listed:
        say(f"{each.name:{width}}  {each.text}")
        for origin in each.origins:
            say(f"{'':{width}}  {origin}")


@environments.command(context_settings=HANDED_OVER)
def check(
    environment: Annotated[
        str,
        typer.Argument(
            metavar="ENV",
            help="A name that `gymnast envs` lists, module:Class or path/to/file.py:Class.",
            autocompletion=complete_environment,
        ),
    ],
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY=VALUE", help="Arguments of its constructor, such as max_turns=3."
        ),
    ] = None,
    rows: Annotated[
        str | None,
        typer.Option(
            "--data",  # as the other commands call it
            "--rows",
            help="Rows to play: a .jsonl, .json, .csv or .parquet file.",
        ),
    ] = None,
    model: Annotated[
        str,
        typer.Option(
            help="The model whose tokenizer and chat template to use; tiny: is Gymnast's own."
        ),
    ] = "tiny:",
) -> None:
    """Check an environment: its prompt, its tools, its solve, and what doing nothing earns."""
    from gymnast.trainers.config.yaml_reader import with_overrides

    options = ["--data", "--rows", "--model"]
    refuse_options([environment, *(settings or [])], options, lambda name: name.strip("-"))
    given: dict[str, Any] = with_overrides({}, settings or [], form=SETTING)
    for name in {"environment", "renderer"} & set(given):
        raise UsageError(
            f"{name} is no argument of an environment's constructor; those stand by themselves "
            "here: sandbox=local, not environment.sandbox=local"
        )
    from gymnast.agents.loading.load import load_tokenizer
    from gymnast.envs import check_env, make
    from gymnast.trainers.config.worked_rows import has_rows
    from gymnast.trainers.data.row_checks import check_rows
    from gymnast.trainers.data.row_files import load_rows

    if rows is not None:
        given["rows"] = load_rows(rows)
    made = make(environment, load_tokenizer(model), **given)
    if made.rows is None and not has_rows(type(made)):
        raise UsageError(
            f"{environment}: makes no rows of its own (it has no sample_row), and an episode "
            "begins from one; name some with --data rows.jsonl"
        )
    try:
        if rows is not None:
            check_rows(given["rows"], made, rows)
        report = check_env(made)
    except AssertionError as error:
        say(f"failed: {environment}: {error}", err=True)
        for note in getattr(error, "__notes__", ()):
            say(note, err=True)
        raise typer.Exit(1) from error
    finally:
        made.close()
    if about := _about(type(made)):
        say(f"{about}\n")
    say(f"{report}\n")
    if model == "tiny:":
        say("The prompt is in the chat template of tiny:; --model NAME uses another model's.")
    say(f"ok: {environment}")


def _about(cls: type) -> str:
    """What an environment's class says of itself, without its arguments: what it pays, say."""
    text = inspect.cleandoc(cls.__doc__ or "")
    return re.split(r"^(?:Args|Attributes):", text, maxsplit=1, flags=re.MULTILINE)[0].strip()
