"""`gymnast train --dry-run`: tries a run without making it, and says what is odd."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gymnast.commands.output import no_input, say, waiting
from gymnast.errors import ConfigError

if TYPE_CHECKING:
    from gymnast.trainers.dry_runs.prompts import Prompt
    from gymnast.types import Trajectory


def refuse_beside_dry_run(*, resume: bool) -> None:
    """Refuse --resume.

    Raises:
        ConfigError: It is given.
    """
    if resume:
        raise ConfigError("--dry-run: tries a run from its beginning; leave --resume out")


def print_dry_run(
    run: str, overrides: Sequence[str], *, verbose: bool, quiet: bool, as_json: bool
) -> None:
    """Try a run, and print what comes of it.

    Args:
        run: Its YAML.
        overrides: Settings to change.
        verbose: Whether the whole of a long prompt is printed.
        quiet: Whether only what is odd is printed.
        as_json: Whether all of it is printed, once it is over, as JSON.
    """
    with waiting(f"loading {run}"):
        from gymnast.trainers.config.files import load_config
        from gymnast.trainers.dry_run import dry_run
        from gymnast.trainers.dry_runs.report import report_record
        from gymnast.trainers.dry_runs.shown import report_lines
        from gymnast.trainers.records.json_text import json_line

        config = load_config(run, overrides)
    told = None if quiet or as_json else _Printed(verbose=verbose)
    with waiting(f"trying {run}"), no_input():
        report = dry_run(config, observer=told)
    if as_json:
        say(json_line(report_record(report)))
    elif quiet:
        for oddity in report.oddities:
            say(oddity)
    else:
        for line in report_lines(report):
            say(line)
        say("nothing was written; without --dry-run the run begins")


class _Printed:
    """Prints a prompt and an episode as soon as they are there."""

    def __init__(self, *, verbose: bool) -> None:
        from rich.console import Console

        self._console: Any = Console(highlight=False)
        self._verbose = verbose

    def on_prompt(self, prompt: "Prompt") -> None:
        from gymnast.trainers.dry_runs.shown import prompt_head, prompt_text, tools_lines

        colors = self._console.is_terminal and not self._console.no_color
        say(prompt_head(prompt))
        text = prompt_text(prompt, colors=colors, whole=self._verbose)
        self._console.print(text, soft_wrap=True)
        say("\n".join(tools_lines(prompt)))

    def on_episode(self, episode: "Trajectory") -> None:
        from gymnast.trainers.dry_runs.shown import episode_lines

        say("\n".join(episode_lines(episode)))
