"""`@tool`: the mark on the functions that a policy may call, with its options.

The function itself is unchanged. `definition.py` reads the marked functions.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, TypeVar, overload

from gymnast.errors import ToolDefinitionError
from gymnast.lookup import did_you_mean

F = TypeVar("F", bound=Callable[..., Any])

_MARK = "__gymnast_tool__"


@dataclass(frozen=True)
class ToolOptions:
    """The options of `@tool(...)`.

    Attributes:
        stop: A call that succeeds ends the episode, after its result is appended.
        timeout_s: Give up on a call after this many seconds; None: wait.
        max_output_tokens: Cut the middle out of a longer result; None: keep it whole.
        concurrent: Consecutive calls in one action run at the same time (`async def` only).

    Raises:
        ToolDefinitionError: A value is out of range or has the wrong type.
    """

    stop: bool = False
    timeout_s: float | None = None
    max_output_tokens: int | None = None
    concurrent: bool = False

    def __post_init__(self) -> None:
        for name in ("stop", "concurrent"):
            if not isinstance(value := getattr(self, name), bool):
                raise ToolDefinitionError(f"@tool: {name} must be True or False, got {value!r}.")
        seconds, tokens = self.timeout_s, self.max_output_tokens
        if seconds is not None and not (_is_number(seconds, int, float) and seconds > 0):
            raise ToolDefinitionError(f"@tool: timeout_s must be > 0, got {seconds!r}.")
        if tokens is not None and not (_is_number(tokens, int) and tokens >= 1):
            raise ToolDefinitionError(f"@tool: max_output_tokens must be >= 1, got {tokens!r}.")


def _is_number(value: Any, *kinds: type) -> bool:
    return isinstance(value, kinds) and not isinstance(value, bool)


@overload
def tool(function: F, /) -> F: ...


@overload
def tool(
    *,
    stop: bool = False,
    timeout_s: float | None = None,
    max_output_tokens: int | None = None,
    concurrent: bool = False,
) -> Callable[[F], F]: ...


def tool(function: Any = None, /, **options: Any) -> Any:
    """Mark a method of an `Environment` (or a plain function) as a tool.

    The function itself is unchanged and can still be called. The policy is shown its name, the text
    of its docstring, its type hints and the entries under `Args:`.

        @tool
        def multiply(self, a: int, b: int) -> int:
            \"\"\"Multiply two integers.\"\"\"
            return a * b

        @tool(stop=True, timeout_s=5)
        async def submit(self, answer: str) -> str:
            \"\"\"Hand in the answer.\"\"\"
            return "received"

    Args:
        function: The function to mark.
        **options: The fields of `ToolOptions`.

    Raises:
        ToolDefinitionError: There is no such option, or it does not mark a function.
    """
    known = [field.name for field in fields(ToolOptions)]
    for name in options:
        if name not in known:
            hint = did_you_mean(name, known)
            raise ToolDefinitionError(
                f"@tool has no option {name!r}.{hint} It takes: {', '.join(known)}."
            )
    made = ToolOptions(**options)

    def mark(target: Any) -> Any:
        _check_markable(target)
        return marked(target, made)

    return mark if function is None else mark(function)


def _check_markable(target: Any) -> None:
    if isinstance(target, property | cached_property):
        raise _property_error(target)
    if isinstance(target, type):
        raise ToolDefinitionError(
            f"@tool marks functions, and {target.__name__} is a class. Mark a method or function."
        )
    if not callable(target) and not isinstance(target, classmethod):
        raise ToolDefinitionError(
            f"@tool marks functions, and was given {target!r:.100}. Write @tool above a `def`; "
            "options go by name, as in @tool(stop=True)."
        )


def _property_error(target: Any) -> ToolDefinitionError:
    name = getattr(plain_function(target), "__name__", "it")
    return ToolDefinitionError(
        f"@tool marks methods, and {name!r} is a property. Drop @{type(target).__name__}: the "
        f"model calls {name}() without arguments."
    )


def marked(function: F, options: ToolOptions) -> F:
    """The same function, marked as a tool with these options."""
    setattr(function, _MARK, options)
    return function


def mark_of(attribute: Any) -> ToolOptions | None:
    """The options of a marked attribute, also below `@staticmethod` or `@classmethod`; else None.

    Raises:
        ToolDefinitionError: It is a marked property.
    """
    for marked in (attribute, plain_function(attribute)):
        options = getattr(marked, _MARK, None)
        if isinstance(options, ToolOptions):
            if isinstance(attribute, property | cached_property):
                raise _property_error(attribute)
            return options
    return None


def plain_function(attribute: Any) -> Any:
    """The function inside a static method, a class method or a property."""
    if isinstance(attribute, property):
        return attribute.fget
    return getattr(
        attribute, "func" if isinstance(attribute, cached_property) else "__func__", attribute
    )
