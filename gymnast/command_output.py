"""What the commands write besides their results: notices, what is waited for, tracebacks."""

import logging
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gymnast.errors import UserCodeError


class _ToStderr(logging.Handler):
    """Writes to what stderr is now: while rich moves a bar, what is written goes above it."""

    def emit(self, record: logging.LogRecord) -> None:
        print(self.format(record), file=sys.stderr)


def log_to_stderr(level: int = logging.INFO) -> None:
    """Show warnings, and what takes long before a run begins: downloads, conversions."""
    logger = logging.getLogger("gymnast")
    if not any(isinstance(handler, _ToStderr) for handler in logger.handlers):
        logger.addHandler(_ToStderr())
    logger.setLevel(level)


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Say on a terminal what is being waited for; a log is told nothing."""
    from rich.console import Console
    from rich.markup import escape

    with Console(stderr=True).status(escape(what)):
        yield


def print_traceback(error: UserCodeError) -> None:
    """The traceback of the user's own code; the error's message names the hook and the row."""
    cause = error.__cause__
    if cause is not None:
        frames = traceback.extract_tb(cause.__traceback__)
        own = [frame for frame in frames if not _is_ours(frame.filename)]
        if own:
            print("Traceback (most recent call last):", file=sys.stderr)
            sys.stderr.writelines(traceback.format_list(own))
        if own or isinstance(cause, SyntaxError):  # which has the line itself
            sys.stderr.writelines(traceback.format_exception_only(cause))


def _is_ours(file: str) -> bool:
    """Whether it is a file of Gymnast's, or of Python's import system."""
    if file.startswith("<frozen importlib"):
        return True
    import gymnast.envs
    import gymnast.trainers

    folders = [Path(str(m.__file__)).parent for m in (gymnast, gymnast.envs, gymnast.trainers)]
    return Path(file).resolve().parent in [folder.resolve() for folder in folders]
