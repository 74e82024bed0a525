"""`gymnast schema`: a run's YAML as JSON Schema, from which editors complete and check."""

import json
from pathlib import Path
from typing import Annotated

import typer

from gymnast.commands.output import say
from gymnast.errors import ConfigError

schema = typer.Typer()


@schema.command(name="schema")
def write_schema(
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="Write it to this file instead of the terminal."
        ),
    ] = None,
) -> None:
    """Write the JSON Schema of a run's YAML: keys, meanings, defaults and names known here."""
    from gymnast.trainers.schema.run_schema import run_schema

    text = json.dumps(run_schema(), indent=2, ensure_ascii=False)
    if output is None:
        say(text)
        return
    try:
        output.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--output: {output} cannot be written: {error.strerror}") from error
    say(f"the schema is in {output}; editors read it where a YAML begins with")
    say(f"# yaml-language-server: $schema={output}")
