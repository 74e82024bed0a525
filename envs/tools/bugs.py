"""Bugs: failures of a tool that its author must fix, not the policy.

The policy is told that its call failed, whatever the cause, and the run continues. The author is
warned once for each tool and kind of exception, with the traceback and the row.

A tool gets arguments of the types that it asks for, so an exception of one of `KINDS` means that
its code is wrong, unless the call explains it: its arguments contain the missing name
(`getattr(self, name)`), the code that failed came from a string (`eval(expression)`), or the tool's
own file raised it on purpose (`raise TypeError("give a list")`). Every other kind (KeyError,
ValueError, ...) may be the answer to what the policy asked for.
"""

import dis
import inspect
import re
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any
from weakref import WeakKeyDictionary

from gymnast.envs.records.episode import ToolError
from gymnast.visible import visible_logger

logger = visible_logger(__name__)

KINDS = (AttributeError, NameError, ImportError, TypeError, NotImplementedError, SyntaxError)
_MAX_ROW_CHARACTERS = 500


def is_bug(
    error: BaseException, sources: Sequence[Callable[..., Any]], arguments: Mapping[str, Any]
) -> bool:
    """Whether an exception from a tool is its author's mistake; see the top of this file.

    Args:
        error: The exception.
        sources: The author's functions: the tool, and a `call_tool` that ran it.
        arguments: The arguments of the call.
    """
    if not isinstance(error, KINDS) or _names_what_is_missing(arguments, error):
        return False
    if isinstance(error, SyntaxError):  # in a module that the tool imports
        return not (error.filename or "<").startswith("<")
    codes = [frame.f_code for frame, _ in traceback.walk_tb(error.__traceback__)]
    if any(code.co_name == "<module>" and code.co_filename.startswith("<") for code in codes):
        return False
    raised_in = codes[-1].co_filename if codes else ""
    on_purpose = raised_in in _files_of(sources) and _by_raise(error)
    return isinstance(error, NotImplementedError) or not on_purpose


def _names_what_is_missing(arguments: Mapping[str, Any], error: BaseException) -> bool:
    name = getattr(error, "name", None)
    if not isinstance(name, str):
        return False
    try:
        text = repr(list(arguments.values()))
    except Exception:  # an argument's own repr failed
        return False
    return re.search(rf"\b{re.escape(name)}\b", text) is not None


def _files_of(functions: Sequence[Callable[..., Any]]) -> set[str]:
    codes = [getattr(inspect.unwrap(function), "__code__", None) for function in functions]
    return {code.co_filename for code in codes if code is not None}


def _by_raise(error: BaseException) -> bool:
    """Whether a `raise` raised it, rather than the interpreter."""
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    if last is None:
        return False
    instruction = last.tb_frame.f_code.co_code[last.tb_lasti]
    return dis.opname[instruction] == "RAISE_VARARGS"


def own_traceback(error: BaseException, sources: Sequence[Callable[..., Any]]) -> str:
    """The traceback from the author's own files on, without Gymnast's frames above them."""
    frames = list(traceback.extract_tb(error.__traceback__))
    files = _files_of(sources)
    own = [i for i, frame in enumerate(frames) if frame.filename in files]
    frames = frames[own[0] :] if own else frames
    head = ["Traceback (most recent call last):\n"] if frames else []
    lines = [*head, *traceback.format_list(frames), *traceback.format_exception_only(error)]
    return "".join(lines).rstrip()


# What the author of each class has been warned of, and whether warnings are off at the moment.
_warned: WeakKeyDictionary[type, set[tuple[str, str, bool]]] = WeakKeyDictionary()
_hushed: ContextVar[bool] = ContextVar("hushed", default=False)


@contextmanager
def hushed() -> Iterator[None]:
    """Log no warnings inside the block, which handles the errors itself."""
    token = _hushed.set(True)
    try:
        yield
    finally:
        _hushed.reset(token)


def _is_new(owner: type, tool: str, exception: str, has_traceback: bool = False) -> bool:
    """Whether to warn the author of a class of this, for the first time."""
    kind = (tool, exception, has_traceback)
    warned = _warned.setdefault(owner, set())
    if _hushed.get() or kind in warned:
        return False
    warned.add(kind)
    return True


def warn_of_bugs(owner: type, errors: Iterable[ToolError], row: Mapping[str, Any]) -> None:
    """Log a warning for each bug whose tool and kind of exception are new.

    Args:
        owner: The environment's class.
        errors: The errors of a turn, of which only bugs count.
        row: The episode's row.
    """
    for error in errors:
        if error.kind != "bug":
            continue
        if _is_new(owner, error.tool, error.exception, bool(error.traceback)):
            logger.warning("%s", _warning(owner.__name__, error, row))


def warn_of_unusable(owner: type, error: Exception) -> None:
    """Log a warning that a hook failed on a file or a text of the policy's, once for each kind.

    Args:
        owner: The environment's class.
        error: The hook's error, whose message begins with the class and the hook.
    """
    if _is_new(owner, str(error).partition(":")[0], type(error.__cause__).__name__):
        logger.warning(
            "%s. The policy can cause this, so it counts as reward 0, now and whenever it happens "
            "again (sandbox/unusable); catch it in the hook to score it otherwise.",
            error,
        )


def _warning(owner: str, error: ToolError, row: Mapping[str, Any]) -> str:
    shown = repr(dict(row))
    if len(shown) > _MAX_ROW_CHARACTERS:
        shown = shown[:_MAX_ROW_CHARACTERS] + "..."
    problem = error.message.removeprefix(f"{error.tool}: ").rstrip(".")
    if error.traceback:
        problem = f"no argument of the call explains the {error.exception}"
    message = (
        f"{owner}.{error.tool} has a bug: {problem}. The model is told that its call failed, and "
        "the run continues; further bugs of this kind are only counted, in tools/errors/bug. "
        f"The row: {shown}"
    )
    return f"{message}\n{error.traceback}" if error.traceback else message
