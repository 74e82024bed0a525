"""Where a function of the user's stands, for errors about it: its file and line."""

import inspect
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType
from typing import Any

from gymnast.errors import ToolDefinitionError


@contextmanager
def names_its_line(function: Any) -> Iterator[None]:
    """Within the block, a `ToolDefinitionError` also says where the function stands, if known.

    Args:
        function: That the error is about.

    Raises:
        ToolDefinitionError: It was raised within the block.
    """
    try:
        yield
    except ToolDefinitionError as error:
        raise ToolDefinitionError(f"{error}{_stands_in(function)}") from error


def _stands_in(function: Any) -> str:
    """A sentence, to follow one; "" where no file has the function."""
    try:
        code = getattr(inspect.unwrap(function), "__code__", None)
    except ValueError:  # it wraps itself
        return ""
    if not isinstance(code, CodeType) or not os.path.isfile(code.co_filename):
        return ""
    file = Path(code.co_filename)
    shown = file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file
    return f" It stands in {shown}, line {code.co_firstlineno}."
