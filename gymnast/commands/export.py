"""`gymnast export`: a run's model or adapters in a folder with a card, or on a hub."""

from pathlib import Path
from typing import Annotated

import typer

from gymnast.commands.completion.words import complete_run
from gymnast.commands.output import say, waiting
from gymnast.errors import ConfigError

export = typer.Typer()


@export.command(name="export")
def export_run(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN", help="The run's folder, or the best in it.", autocompletion=complete_run
        ),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FOLDER", help="The folder to write.")
    ],
    adapter: Annotated[bool, typer.Option("--adapter", help="Write only the adapters.")] = False,
    merged: Annotated[
        bool,
        typer.Option(
            "--merged", help="Write the whole model with its adapters merged; the default."
        ),
    ] = False,
    push: Annotated[
        str | None, typer.Option(metavar="REPO", help="Also push it to the hub as org/name.")
    ] = None,
    private: Annotated[bool, typer.Option(help="Create the repository as a private one.")] = False,
) -> None:
    """Export a run's model, with a card that tells how it came about."""
    if adapter and merged:
        raise ConfigError("--adapter and --merged: leave one of them out")
    if private and push is None:
        raise ConfigError("--private: is about a repository on the hub; name it with --push")
    with waiting(f"exporting {run}"):
        from gymnast.trainers.exporting import export as exporting

        if push is not None:
            exporting.check_repository(push)
        exporting.export_run(Path(run).expanduser(), output, merged=not adapter, place=push)
    say(f"the {'adapters are' if adapter else 'model is'} in {output}, with {exporting.CARD}")
    if push is not None:
        with waiting(f"pushing to {push}"):
            place = exporting.push(output, push, private=private)
        say(f"pushed to {place}")
