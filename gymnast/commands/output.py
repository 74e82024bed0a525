"""What the commands write: results, notices, progress and tracebacks, all made visible first."""

import logging
import os
import sys
import threading
import traceback
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import typer

from gymnast.errors import UserCodeError
from gymnast.visible import make_visible, visible, visible_line

_PACKAGES = {f"gymnast{package}" for package in ("", ".agents", ".envs", ".sandboxes", ".trainers")}
_formatwarning, _record = warnings.formatwarning, logging.getLogRecordFactory()


class _ToStderr(logging.Handler):
    """Writes to the current stderr: while rich shows a bar, lines go above it."""

    def emit(self, record: logging.LogRecord) -> None:
        print(self.format(record), file=sys.stderr)


def say(text: object, *, err: bool = False) -> None:
    """Write a line, or several, to standard output or to standard error."""
    typer.echo(visible(str(text)), err=err)


def escape_what_python_writes() -> None:
    """Make visible what Python and other libraries write: tracebacks, warnings, log records."""
    if sys.excepthook is sys.__excepthook__:
        sys.excepthook = _write_exception
    if threading.excepthook is threading.__excepthook__:
        threading.excepthook = _write_failure_of_thread
    if sys.unraisablehook is sys.__unraisablehook__:
        sys.unraisablehook = _write_unraisable
    warnings.formatwarning = _formatted_warning
    logging.setLogRecordFactory(_visible_record)


def log_to_stderr(level: int = logging.INFO) -> None:
    """Log to stderr: warnings, and what takes long before a run begins (downloads, say)."""
    logger = logging.getLogger("gymnast")
    if not any(isinstance(handler, _ToStderr) for handler in logger.handlers):
        logger.addHandler(_ToStderr())
    logger.setLevel(level)
    # Transformers imports DeepSpeed to save a model, which logs to stdout that there is no GPU.
    logging.getLogger("DeepSpeed").addFilter(_says_more_than_the_device)


def _says_more_than_the_device(record: logging.LogRecord) -> bool:
    return not record.getMessage().startswith("Setting accelerator to CPU")


@contextmanager
def waiting(activity: str) -> Iterator[None]:
    """Show on a terminal, but not in a log, what the user is waiting for."""
    from rich.console import Console
    from rich.markup import escape

    with Console(stderr=True).status(escape(visible_line(activity))):
        yield


@contextmanager
def no_input() -> Iterator[None]:
    """Let nothing read the terminal: several episodes at once would wait for one line of it.

    A thread that still waits for standard input would abort Python when it ends.
    """
    before = sys.stdin
    with open(os.devnull, encoding="utf-8") as nothing:
        sys.stdin = nothing
        try:
            yield
        finally:
            sys.stdin = before


def print_traceback(error: UserCodeError) -> None:
    """Print the traceback of the user's own code; the message names the hook and the row."""
    cause = error.__cause__
    if cause is not None:
        frames = traceback.extract_tb(cause.__traceback__)
        own = [frame for frame in frames if not _is_ours(frame.filename)]
        if own:
            _write(["Traceback (most recent call last):\n", *traceback.format_list(own)])
        noted = getattr(cause, "__notes__", None)  # the traceback of another machine, say
        if own or noted or isinstance(cause, SyntaxError):  # which has the line itself
            _write(traceback.format_exception_only(cause))


def _write(lines: Iterable[str]) -> None:
    sys.stderr.write(visible("".join(lines)))


def _write_exception(
    kind: type[BaseException], error: BaseException | None, trace: TracebackType | None
) -> None:
    _write(traceback.format_exception(kind, error, trace))


def _write_failure_of_thread(failed: threading.ExceptHookArgs) -> None:
    if failed.exc_type is not SystemExit:
        name = failed.thread.name if failed.thread is not None else "?"
        _write([f"Exception in thread {name}:\n"])
        _write_exception(failed.exc_type, failed.exc_value, failed.exc_traceback)


def _write_unraisable(failed: Any) -> None:
    """Write what nobody can catch because it was raised during a deletion, say."""
    message = failed.err_msg or "Exception ignored in"
    _write([f"{message}: {failed.object!r}\n"])
    _write_exception(failed.exc_type, failed.exc_value, failed.exc_traceback)


def _visible_record(*arguments: Any, **named: Any) -> logging.LogRecord:
    record = _record(*arguments, **named)
    make_visible(record)
    return record


def _formatted_warning(*arguments: Any, **named: Any) -> str:
    return visible(_formatwarning(*arguments, **named))


def _is_ours(file: str) -> bool:
    """Whether a file is part of Gymnast or of Python's import system."""
    if file.startswith("<frozen importlib"):
        return True
    loaded = [module for name, module in sys.modules.items() if name in _PACKAGES]
    folders = [Path(str(module.__file__)).parent.resolve() for module in loaded]
    path = Path(file).resolve()
    return any(path.is_relative_to(folder) for folder in folders)
