"""`gymnast view`: runs in a browser, live or as one file."""

import math
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from gymnast.commands.output import say, waiting
from gymnast.commands.saved.selection import (
    Environment,
    Error,
    Evaluations,
    Group,
    MaxReward,
    MinReward,
    Search,
    Step,
    StopReason,
    Tags,
    Tool,
    Where,
    as_options,
    steps_of,
    tags_of,
)
from gymnast.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gymnast.trainers.inspecting.filters import Filter
    from gymnast.viewer.runs import Run

viewing = typer.Typer()


@viewing.command()
def view(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN...", help="Folders of runs or of evaluations."),
    ],
    html: Annotated[
        str | None,
        typer.Option("--html", metavar="FILE", help="Write one file that needs no server."),
    ] = None,
    limit_mb: Annotated[
        float, typer.Option("--limit-mb", help="With --html: the largest size of the file, in MB.")
    ] = 20.0,
    port: Annotated[int, typer.Option(help="The port to listen on; 0 takes a free one.")] = 0,
    browser: Annotated[
        bool, typer.Option("--browser", help="Open the page in this machine's browser.")
    ] = False,
    step: Step = None,
    evaluations: Evaluations = False,
    group: Group = None,
    min_reward: MinReward = None,
    max_reward: MaxReward = None,
    stop_reason: StopReason = None,
    environment: Environment = None,
    tool: Tool = None,
    error: Error = None,
    tag: Tags = None,
    where: Where = None,
    search: Search = None,
) -> None:
    """Show what runs did: plots, conversations, tokens, groups, and why rewards are 0.

    Serves a page on 127.0.0.1 until Ctrl-C, and keeps it up to date while a run trains. The
    address it prints opens the page in one browser; once used, the next address is printed.

    With --html, the options from --step on select the episodes to write; by default all that fit.
    """
    with waiting("loading"):
        from gymnast.trainers.inspecting.filters import Filter
        from gymnast.viewer.runs import named_runs
        from gymnast.viewer.server import Viewer

    with as_options():
        wanted = Filter(
            steps=steps_of(step),
            evaluations=evaluations or None,
            group=group,
            min_reward=min_reward,
            max_reward=max_reward,
            stop_reason=stop_reason,
            environment=environment,
            tool=tool,
            error=error,
            tags=tags_of(tag),
            where=where,
            search=search,
        )
        shown = named_runs(runs)
        if html is not None:
            if port or browser:
                raise UsageError(
                    "--html writes a file and serves nothing; leave out --port and --browser"
                )
            _write(html, shown, wanted, limit_mb)
            return
    if wanted != Filter():
        raise UsageError(
            "--step and the options after it choose what a file holds; add --html FILE, or leave "
            "them out and filter in the page"
        )
    if not 0 <= port <= 65535:
        raise UsageError(f"--port: must be between 0 and 65535, got {port}")
    try:
        viewer = Viewer(shown, port, told=lambda url: say(f"for another browser: {url}"))
    except OSError as error_of_port:
        raise UsageError(
            f"--port {port}: cannot be listened on ({error_of_port.strerror}); name another one, "
            "or none"
        ) from error_of_port
    say(f"{viewer.url}\nCtrl-C ends it.")
    if browser:
        webbrowser.open(viewer.url)
    viewer.serve()


def _write(path: str, shown: "Sequence[Run]", wanted: "Filter", limit_mb: float) -> None:
    from gymnast.trainers.inspecting.occurring import told_of_none
    from gymnast.viewer.single_file import write_single_file

    if not 0 < limit_mb < math.inf:
        raise UsageError(f"--limit-mb: must be a number above 0, got {limit_mb:g}")
    try:
        _check_replaceable(Path(path))
        with waiting(f"writing {path}"):
            held = write_single_file(path, shown, wanted, limit_mb)
    except OSError as error:
        raise UsageError(
            f"--html {path!r}: cannot be written ({error.strerror}); name a file in a folder that "
            "is there"
        ) from error
    left_out = "" if held.episodes == held.of else f" of {held.of:,}"
    say(f"{path}: {held.episodes:,}{left_out} episodes, {held.size / 1e6:.1f} MB")
    for run in shown:
        if held.of == 0 and run.has_episodes:
            say("\n".join([f"{run.name}: {line}" for line in told_of_none(run.index(), wanted)]))


def _check_replaceable(path: Path) -> None:
    """Check that a file which is replaced is a page.

    Raises:
        OSError: It cannot be read.
        UsageError: It holds something else.
    """
    start = b"<!doctype html>"
    if path.is_file():
        with path.open("rb") as file:
            if file.read(len(start)).lower() not in (b"", start):
                raise UsageError(
                    f"--html {path}: is there and is no page of gymnast view, so it is not "
                    "replaced; name another file"
                )
