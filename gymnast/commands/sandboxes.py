"""`gymnast sandboxes`: which backends work here, and removing what killed runs left behind."""

from typing import Annotated

import typer

from gymnast.commands.output import say

sandboxes = typer.Typer(
    invoke_without_command=True,
    help="List the sandbox backends that work here; `sweep` removes what killed runs left behind.",
)


@sandboxes.callback()
def backends(context: typer.Context) -> None:
    """List the sandbox backends: each opens a box here, or says why it cannot."""
    if context.invoked_subcommand is not None:
        return
    from gymnast.errors import SandboxUnavailable, UsageError, UserCodeError
    from gymnast.sandboxes.backends.open import backends, isolates, open_sandbox

    names = backends()
    width = max(len(name) for name in names)
    for name in names:
        try:
            open_sandbox(name).close()
            outcome = "works" if isolates(name) else "works, without isolation"
        except (SandboxUnavailable, UsageError, UserCodeError) as error:  # a broken package's, say
            outcome = f"does not work: {error}"
        say(f"{name:{width}}  {outcome}")


@sandboxes.command()
def sweep(
    all_hosts: Annotated[
        bool,
        typer.Option(
            "--all-hosts",
            help="Also boxes whose owners ran on another host, in another container, or before "
            "the last start of this machine: nothing here can tell whether those still run.",
        ),
    ] = False,
) -> None:
    """Remove containers, folders and processes of boxes whose owners are gone.

    Boxes of running processes are never touched.
    """
    from gymnast.sandboxes.backends.sweep import sweep as sweep_boxes

    swept = sweep_boxes(all_hosts=all_hosts)
    say(
        f"removed: {swept.containers} containers, {swept.folders} folders, "
        f"{swept.processes} processes"
    )
    if swept.elsewhere:
        say(
            f"left: {swept.elsewhere} boxes of owners on another host, in another container, or "
            "from before this machine was started last; --all-hosts removes them, too"
        )
    for line in swept.failed:
        say(f"failed: {line}", err=True)
    if swept.failed:
        raise typer.Exit(1)
