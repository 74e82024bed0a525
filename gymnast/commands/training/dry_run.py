"""`gymnast train --dry-run`: tries a run without making it, and says what is odd."""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Self

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
    said: Sequence[object]
    with waiting(f"loading {run}"):
        from gymnast.trainers.config.files import load_config
        from gymnast.trainers.dry_run import dry_run
        from gymnast.trainers.dry_runs.report import report_record
        from gymnast.trainers.dry_runs.shown import expected_lines, report_lines
        from gymnast.trainers.records.json_text import json_line

        config = load_config(run, overrides)
    if quiet or as_json:
        with waiting(f"trying {run}"), no_input():
            report = dry_run(config)
        odd = [*report.oddities, *expected_lines(report)]
        said = [json_line(report_record(report))] if as_json else odd
    else:
        with _Printed(run, verbose=verbose) as printed, no_input():
            report = dry_run(config, observer=printed)
        said = [*report_lines(report), "nothing was written; without --dry-run the run begins"]
    for line in said:
        say(line)


class _Printed:
    """Prints a prompt and an episode as soon as they are there, and in between what is awaited."""

    def __init__(self, run: str, *, verbose: bool) -> None:
        from rich.console import Console

        self._console: Any = Console(highlight=False)
        self._run, self._verbose = run, verbose
        self._awaited = ExitStack()

    def __enter__(self) -> Self:
        self._await(f"trying {self._run}")
        return self

    def __exit__(self, *raised: object) -> None:
        self._awaited.close()

    def on_prompt(self, prompt: "Prompt") -> None:
        from gymnast.trainers.dry_runs.shown import prompt_head, prompt_text, tools_lines

        self._awaited.close()  # what is shown of it would take what is printed along to stderr
        colors = self._console.is_terminal and not self._console.no_color
        say(prompt_head(prompt))
        text = prompt_text(prompt, colors=colors, whole=self._verbose)
        self._console.print(text, soft_wrap=True)
        say("\n".join(tools_lines(prompt)))
        self._await("playing an episode")

    def on_episode(self, episode: "Trajectory") -> None:
        from gymnast.trainers.dry_runs.shown import episode_lines

        self._awaited.close()
        say("\n".join(episode_lines(episode)))
        self._await("playing more, and learning from them without a step")

    def _await(self, activity: str) -> None:
        self._awaited.enter_context(waiting(activity))
