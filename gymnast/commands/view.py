"""`gymnast view`: runs in a browser, live or as one file."""

import webbrowser
from typing import Annotated

import typer

from gymnast.commands.output import say, waiting
from gymnast.errors import UsageError

viewing = typer.Typer()


@viewing.command()
def view(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN...", help="Folders of runs, or of evaluations on their own."),
    ],
    html: Annotated[
        str | None,
        typer.Option("--html", metavar="FILE", help="Write one file that needs no server."),
    ] = None,
    limit_mb: Annotated[
        float, typer.Option("--limit-mb", help="With --html: what the file may take, in MB.")
    ] = 20.0,
    port: Annotated[int, typer.Option(help="To listen on; 0: one that is free.")] = 0,
    browser: Annotated[
        bool, typer.Option("--browser", help="Open the page in this machine's browser.")
    ] = False,
) -> None:
    """Show what runs did: plots, conversations, tokens, groups, and why rewards are 0.

    Serves a page on 127.0.0.1 until Ctrl-C. The address that is printed opens it in one browser;
    when it was used, the next one is printed. A run that goes on is shown as it goes.
    """
    with waiting("loading"):
        from gymnast.viewer.runs import named_runs
        from gymnast.viewer.server import Viewer
        from gymnast.viewer.single_file import write_single_file

    shown = named_runs(runs)
    if html is not None:
        try:
            with waiting(f"writing {html}"):
                held = write_single_file(html, shown, limit_mb=limit_mb)
        except OSError as error:
            raise UsageError(
                f"--html {html}: cannot be written ({error.strerror}); name a file in a folder "
                "that is there"
            ) from error
        left_out = "" if held.episodes == held.of else f" of {held.of:,}"
        say(f"{html}: {held.episodes:,}{left_out} episodes, {held.size / 1e6:.1f} MB")
        return
    try:
        viewer = Viewer(shown, port, told=lambda url: say(f"for another browser: {url}"))
    except OSError as error:
        raise UsageError(
            f"--port {port}: cannot be listened on ({error.strerror}); name another one, or none"
        ) from error
    say(f"{viewer.url}\nCtrl-C ends it.")
    if browser:
        webbrowser.open(viewer.url)
    viewer.serve()
