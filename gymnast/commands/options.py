"""What the commands share: settings as KEY=VALUE, and messages about unknown options."""

import re
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from gymnast.commands.completion.words import complete_override
from gymnast.errors import ConfigError
from gymnast.lookup import nearest

# Unknown options are passed on as if they were settings, so that `refuse_options` can say more.
HANDED_OVER = {"ignore_unknown_options": True}

# What the argument of an environment's constructor must be.
SETTING = "key=value, such as max_turns=3"

Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY=VALUE",
        help="Settings to change, such as trainer.steps=20.",
        autocompletion=complete_override,
    ),
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Print more.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print only the outcome.")]


# What an option's number must be, by pydantic's error type.
_RULES = {
    "greater_than_equal": ">= {ge:g}",
    "less_than_equal": "<= {le:g}",
    "int_parsing": "a whole number",
    "float_parsing": "a number",
}


class Commands(TyperGroup):
    """The commands; a value that an option does not take is refused as a setting's is.

    Typer's own message of some versions leaves the value out.
    """

    def invoke(self, ctx: Any) -> Any:
        """Run the command that is named.

        Raises:
            ConfigError: An option does not take its value.
        """
        try:
            return super().invoke(ctx)
        except typer.BadParameter as error:
            from pydantic import ValidationError

            cause, option = error.__cause__, error.param
            if option is None or not isinstance(cause, ValidationError):
                raise
            (problem, *_) = cause.errors()
            rule = _RULES.get(problem["type"])
            if rule is None:
                raise
            said = f"must be {rule.format(**problem.get('ctx', {}))}, got {problem['input']}"
            raise ConfigError(f"{option.opts[0]}: {said}") from cause


def refuse_options(
    arguments: Sequence[str], known: Sequence[str], setting: Callable[[str], str | None]
) -> None:
    """Refuse options that a command does not have, and say what to write instead.

    Args:
        arguments: The command's arguments without its own options.
        known: The command's own options.
        setting: Maps an option's name to the key of the setting that may be meant.

    Raises:
        ConfigError: There is such an option.
    """
    for index, argument in enumerate(arguments):
        if not re.match(r"--?[A-Za-z]", argument):
            continue
        name, equals, value = argument.partition("=")
        after = arguments[index + 1] if index + 1 < len(arguments) else ""
        if not equals and after and "=" not in after and not after.startswith("-"):
            value = after
        if near := nearest(name, known):
            hint = f"did you mean {near}?"
        elif key := setting(name):
            hint = f"settings are written without dashes: {key}={value or '...'}"
        else:
            hint = f"the options are {', '.join(known)}; settings are written like trainer.steps=20"
        raise ConfigError(f"{name}: there is no such option; {hint}")


def setting_of_run(name: str) -> str | None:
    """The key of a run's setting that an unknown option may mean."""
    from gymnast.trainers.base.key_hints import setting_meant
    from gymnast.trainers.config.sections import run_keys  # heavy

    return setting_meant(name, run_keys())


def refuse_both(verbose: bool, quiet: bool) -> None:
    """Refuse -v and -q together.

    Raises:
        ConfigError: Both are given.
    """
    if verbose and quiet:
        raise ConfigError("-v prints more and -q less; leave one of them out")
