"""The command line: train, evaluate, and look at environments.

    gymnast train RUN.yaml trainer.steps=20      train as a YAML file says, with overrides
    gymnast train RUN.yaml --dry-run             try it: a prompt, some episodes, what is odd
    gymnast train RUN.yaml --resume              continue from the newest checkpoint
    gymnast eval runs/arithmetic                 evaluate a trained model on its evaluation rows
    gymnast eval MODEL --environment ENV         evaluate a model by its name
    gymnast eval --compare A B                   compare evaluations row by row
    gymnast envs                                 list the environments that are installed
    gymnast check my_envs:Shop                   check that an environment keeps the contract
    gymnast new dice-game                        make a package for an environment of your own
    gymnast demos my_envs:Shop                   write episodes that the environment's solve plays
    gymnast export RUN --output FOLDER           write the trained model and its card; push it
    gymnast schema --output run.schema.json      write what editors complete a run's YAML from
    gymnast rollouts runs/arithmetic --step 7    print the episodes that a run has saved
    gymnast rescore runs/arithmetic --reward mine.py:brief   grade them anew
    gymnast replay runs/arithmetic step_00007/3/1   play one again and say where it differs
    gymnast view runs/arithmetic                 show what runs did in a browser
    gymnast sandboxes                            list the sandbox backends and which work here
    gymnast sandboxes sweep                      remove what killed runs have left behind

    python -m gymnast ...                        the same
    accelerate launch --config_file examples/accelerate/cpu.yaml -m gymnast.cli train RUN.yaml

A user's mistake ends with one clear line and exit code 2. The commands import torch and
transformers only when they run, so that `--help` is quick.
"""

import gc
import logging
import shlex
import sys
from typing import TYPE_CHECKING, Annotated

import typer

from gymnast import __version__
from gymnast.commands.completion.words import complete_yaml
from gymnast.commands.demos import demos
from gymnast.commands.environments import environments
from gymnast.commands.evaluate import evaluating
from gymnast.commands.export import export
from gymnast.commands.new import new
from gymnast.commands.options import (
    HANDED_OVER,
    Commands,
    Overrides,
    Quiet,
    Verbose,
    refuse_both,
    refuse_options,
    setting_of_run,
)
from gymnast.commands.output import (
    escape_what_python_writes,
    log_to_stderr,
    print_traceback,
    say,
    waiting,
)
from gymnast.commands.sandboxes import sandboxes
from gymnast.commands.saved.replay import replay
from gymnast.commands.saved.rescore import rescore
from gymnast.commands.saved.rollouts import rollouts
from gymnast.commands.saved.view import viewing
from gymnast.commands.schema import schema
from gymnast.commands.training.dry_run import print_dry_run, refuse_beside_dry_run
from gymnast.cores import share_cores
from gymnast.errors import ConfigError, GymnastError, UsageError, UserCodeError
from gymnast.sandboxes.lifetime.signals import close_boxes_on_sigterm

if TYPE_CHECKING:
    from gymnast.trainers.reporting.console import RunConsole

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Train language models to use tools.",
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.add_typer(environments)
app.add_typer(evaluating)
app.add_typer(new)
app.add_typer(demos)
app.add_typer(export)
app.add_typer(schema)
app.add_typer(rollouts)
app.add_typer(rescore)
app.add_typer(replay)
app.add_typer(viewing)
app.add_typer(sandboxes, name="sandboxes")

INTERRUPTED = 130  # the exit code after Ctrl-C, as in a shell


def main() -> None:
    """Run the command line; Gymnast's own exceptions become a message and an exit code."""
    escape_what_python_writes()
    if "torch" not in sys.modules:  # else the program that calls this has set its threads
        share_cores()
    try:
        app()
    except SystemExit as ended:
        if ended.code == INTERRUPTED:
            say("interrupted", err=True)
        raise
    except GymnastError as error:
        if isinstance(error, UserCodeError):
            print_traceback(error)
        for line in str(error).splitlines():
            say(f"error: {line}", err=True)
        for note in getattr(error, "__notes__", ()):  # what is saved, and how to continue
            say(note, err=True)
        sys.exit(2 if isinstance(error, UsageError) else 1)


@app.command(context_settings=HANDED_OVER)
def train(
    run: Annotated[
        str,
        typer.Argument(
            metavar="RUN.yaml", help="The run's configuration.", autocompletion=complete_yaml
        ),
    ],
    overrides: Overrides = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Continue from the newest checkpoint of the run's folder."),
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Load everything, show a prompt, play some episodes and say what is odd; "
            "nothing is written.",
        ),
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="With --dry-run: print what it finds as JSON.")
    ] = False,
    verbose: Verbose = False,
    quiet: Quiet = False,
) -> None:
    """Train a model as a YAML file says.

    -v also prints some episodes of each step and all metrics of each evaluation.
    -q prints only warnings and the run's folder.
    """
    options = ["--resume", "--dry-run", "--json", *_OUTPUT]
    _begin([run, *(overrides or [])], options, verbose=verbose, quiet=quiet or as_json)
    close_boxes_on_sigterm()
    if dry_run:
        refuse_beside_dry_run(resume=resume)
        print_dry_run(run, overrides or [], verbose=verbose, quiet=quiet, as_json=as_json)
        return
    if as_json:
        raise ConfigError("--json: prints what --dry-run finds; add that, or leave it out")
    with waiting(f"loading {run}"):
        from gymnast.trainers.build import build_trainer
        from gymnast.trainers.config.files import load_config
        from gymnast.trainers.distributed.processes import end

        config = load_config(run, overrides or [])
        console = _console(verbose=verbose, quiet=quiet)
        trainer = build_trainer(config, observer=console, resume=resume)
    gc.freeze()  # modules and the model stay; the collector need not look at them again
    several = trainer.accelerator.num_processes > 1
    trainer.loop.resumed_by = _resuming(run, overrides or [], several=several)
    try:
        summary = trainer.train(resume=resume)
    except KeyboardInterrupt:  # the second one
        say(trainer.loop.kept(), err=True)
        raise
    whole = summary["stopped_by"] == "steps"
    if whole and trainer.accelerator.is_main_process:
        folder = config.output_dir
        say(f"the run is in {folder}, the trained model in {folder}/model")
    if whole and trainer.accelerator.is_main_process and not quiet:
        given = [each for each in overrides or [] if not each.startswith("trainer.steps=")]
        more = _resuming(run, [*given, f"trainer.steps={2 * trainer.steps}"], several=several)
        if summary.get("after", 1) <= 0 and config.rollouts.keep != "none":
            say(f"why episodes earned nothing: gymnast rollouts {shlex.quote(str(folder))} --why")
        say(f"to train further: {more}")
    trainer.accelerator.wait_for_everyone()  # the main process has saved the model
    if not whole:
        trainer.accelerator.end_training()
        raise typer.Exit(INTERRUPTED)
    end(trainer.accelerator)


def _resuming(run: str, overrides: list[str], *, several: bool) -> str:
    """The command that continues a run, without the launcher of several processes."""
    command = shlex.join(["train", run, *overrides, "--resume"])
    return f"-m gymnast.cli {command}, launched as before" if several else f"gymnast {command}"


_OUTPUT = ["--verbose", "--quiet"]


def _begin(arguments: list[str], options: list[str], *, verbose: bool, quiet: bool) -> None:
    """Refuse unknown options, and set how much is logged."""
    refuse_options(arguments, options, setting_of_run)
    refuse_both(verbose, quiet)
    log_to_stderr(logging.WARNING if quiet else logging.DEBUG if verbose else logging.INFO)


def _console(*, verbose: bool, quiet: bool) -> "RunConsole | None":
    from gymnast.trainers.reporting.console import DetailedConsole, RunConsole

    if quiet:
        return None
    return DetailedConsole() if verbose else RunConsole()


def _show_version(wanted: bool) -> None:
    if wanted:
        say(f"gymnast {__version__}")
        raise typer.Exit


@app.callback()
def _common(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="Show the version and exit."
        ),
    ] = False,
) -> None:
    pass


if __name__ == "__main__":
    main()
