"""`reference/commands.md`: every command with its options, made of the command line."""

import inspect
import re
from collections.abc import Iterator
from typing import Any

import typer

from gymnast import cli

_ABOUT = """\
# Every command

<!-- Written by `python docs/generate.py` of the commands of gymnast/cli.py. -->

| for example | does this |
| --- | --- |
{examples}

{ending}
"""


def command_page() -> str:
    """The page as Markdown."""
    root: Any = typer.main.get_command(cli.app)
    _, examples, *_, ending = inspect.cleandoc(cli.__doc__ or "").split("\n\n")
    pairs = (re.split(r"\s{2,}", line.strip(), maxsplit=1) for line in examples.splitlines())
    rows = [f"| `{command}` | {does} |" for command, does in pairs]
    about = _ABOUT.format(examples="\n".join(rows), ending=ending)
    return "\n".join([about, *_command(root, "gymnast", None)])


def _command(command: Any, name: str, parent: Any) -> Iterator[str]:
    """The text of a command, then those of the commands within it."""
    context = typer.Context(command, info_name=name.rpartition(" ")[2], parent=parent)
    usage = " ".join([name, *command.collect_usage_pieces(context)])
    parts = [f"## `{name}`", _text(command.help or ""), f"```text\n{usage}\n```"]
    records = [(p.param_type_name, p.get_help_record(context)) for p in command.get_params(context)]
    for kind, title in (("argument", "Arguments"), ("option", "Options")):
        lines = [f"- `{r[0]}`: {_text(r[1])}" for of, r in records if of == kind and r]
        parts += [f"{title}:", "\n".join(lines)] if lines else []
    yield "\n\n".join(part for part in parts if part) + "\n"
    for inner in getattr(command, "commands", {}).values():
        yield from _command(inner, f"{name} {inner.name}", context)


def _text(text: str) -> str:
    """Help as Markdown: code that has backticks in it is kept, and so are spaces of no meaning."""
    text = re.sub(r"'([^'\n]*`[^'\n]*)'", r"``\1``", text)
    text = re.sub(r"(?<![\w`-])(--?[a-z][\w-]*)", r"`\1`", text)
    return text.replace("*", r"\*").replace("  [", " [")
