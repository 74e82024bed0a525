"""Every exception Gymnast raises on purpose, and who is to blame for each.

    GymnastError
    |-- UsageError                (ValueError)    the user can fix it before the run
    |   |-- ConfigError                           a run's YAML, an override, a setting
    |   |   `-- NewerFormat                       what a later version of Gymnast has written
    |   |-- DataError                             a dataset, a row, a column
    |   |-- CannotReplay                          a saved episode of which not enough is saved
    |   |-- ModelError                            a model or tokenizer that cannot be loaded or used
    |   |-- TemplateError                         a chat template that the renderer cannot follow
    |   |-- NotEnoughMemory       (MemoryError)   a step of training that would not fit
    |   |-- SandboxTextError                      a command or path that no system can take
    |   |-- ToolDefinitionError   (TypeError)     a tool whose schema cannot be read
    |   |-- UnknownEnvironment    (LookupError)   a name that no environment has
    |   `-- PromptTooLong                         a row whose prompt leaves no room to act
    |-- UserCodeError             (RuntimeError)  the user's `setup`, `reward`, ... raised
    |   |-- NoSolution                            `solve` has no solution for a row
    |   `-- NoRequest                             a program ended before it asked for anything
    |-- InfrastructureError       (RuntimeError)  a sandbox died, a server was lost
    |   |-- EndpointError                         a chat endpoint does not answer as it should
    |   |-- ServerLost                            a server that samples is broken; others go on
    |   `-- SandboxError                          a box, or the backend that makes boxes
    |       |-- SandboxDead                       a box is closed, was killed, or does not answer
    |       `-- SandboxUnavailable                a backend cannot make boxes here
    |           `-- SandboxTemporarilyUnavailable     or only not now: its engine is down, say
    |-- NoServers                 (RuntimeError)  all servers that sample are lost
    |-- SandboxFileError          (OSError)       a path in a box: missing, a folder, too large, ...
    |-- ProcessTimeout            (TimeoutError)  a process in a box does not end, read or write
    |-- ProcessInputClosed        (BrokenPipeError)   it does not read its stdin any more
    |-- SandboxBroken             (RuntimeError)  the policy broke the box of its episode
    |-- TooManyFailures           (RuntimeError)  more episodes failed than the run allows
    |-- DiskFull                  (OSError)       no room where a run writes
    |-- Diverged                  (FloatingPointError)  losses or gradients are no longer finite
    `-- CheckpointError           (RuntimeError)  a checkpoint is damaged or does not fit

What the *model* writes never raises: it becomes an observation. Messages name the thing, its
value, the rule and the way out. `str()` of an error is safe to print, whatever it quotes.
"""

import reprlib
from typing import Any

from gymnast.visible import visible


class GymnastError(Exception):
    """The root of every exception Gymnast raises on purpose."""

    def __str__(self) -> str:
        return visible(super().__str__())


class UsageError(GymnastError, ValueError):
    """Something the user can fix, reported before any training time is spent."""


class ConfigError(UsageError):
    """A run's configuration has an unknown field, a wrong value or a missing file."""


class NewerFormat(ConfigError):
    """A later version of Gymnast has written a config, in a format that is not known here."""


class DataError(UsageError):
    """A dataset or a row lacks what the environment needs."""


class ModelError(UsageError):
    """A model or tokenizer cannot be loaded, or lacks what training needs."""


class NotEnoughMemory(UsageError, MemoryError):
    """A step of training would take more memory than there is. It has not been started."""


class TemplateError(UsageError):
    """The renderer cannot follow a chat template."""


class SandboxTextError(UsageError):
    """A command, a path or a folder for a sandbox holds NUL or half a character, or is too long.

    The text may be the model's: raised in a tool, the error is a message to the model; in a hook
    that scores an episode, it does not end the run.
    """


class ToolDefinitionError(UsageError, TypeError):
    """A tool lacks the type hints or the docstring that its schema is made of."""


class UnknownEnvironment(UsageError, LookupError):
    """Nothing is registered under this name, and no environment can be imported by it."""


class CannotReplay(UsageError):
    """Not enough of an episode is saved to play it again."""


class PromptTooLong(UsageError):
    """A row's prompt leaves no room to act. The row is skipped and counted, never cut.

    Attributes:
        tokens: How many the prompt has; None where nobody says.
    """

    tokens: int | None = None


class UserCodeError(GymnastError, RuntimeError):
    """Code of the user's raised, a hook for instance. The original exception is `__cause__`.

    Attributes:
        hook: The hook that raised: "setup", "reward", "turn_reward", ...
        row: The dataset row of the episode, or None where there was none yet.
        problem: The message without the row, which may be long.
    """

    def __init__(self, hook: str, row: Any, problem: str, shown_row: str = "") -> None:
        super().__init__(f"{problem} (row: {shown_row})" if shown_row else problem)
        self.hook = hook
        self.row = row
        self.problem = problem
        self._shown_row = shown_row

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.hook, self.row, self.problem, self._shown_row)


class NoSolution(UserCodeError):
    """The environment's `solve` returned None: it does not know how to solve this row."""


class NoRequest(UserCodeError):
    """The program of an episode ended before its first request. The episode is left out."""


class InfrastructureError(GymnastError, RuntimeError):
    """What an episode runs on broke. The episode ends with `StopReason.error` and is retried."""


class EndpointError(InfrastructureError):
    """A chat endpoint cannot be reached, is too busy, or does not answer as it should."""


class ServerLost(InfrastructureError):
    """A server that samples cannot be reached, is too slow, or is broken."""


class NoServers(GymnastError, RuntimeError):
    """None of the servers that sample is left. The run ends, and its last step is saved."""


class SandboxError(InfrastructureError):
    """A sandbox, or the backend that makes sandboxes, does not work."""


class SandboxDead(SandboxError):
    """A sandbox cannot be used any more: it was closed or killed, or does not answer."""


class SandboxUnavailable(SandboxError):
    """A backend cannot make sandboxes here; the message says why, and what would help."""


class SandboxTemporarilyUnavailable(SandboxUnavailable):
    """A backend cannot make sandboxes now, and may be able to later.

    Its engine does not answer or has failed, or the machine has no processes or descriptors left.
    """


class SandboxFileError(GymnastError, OSError):
    """A file operation failed inside a sandbox because of the path; the sandbox still works.

    It is not an `InfrastructureError`: the path may be the model's, which is told about it.

    Attributes:
        errno: The system's number for what is wrong, `errno.ENOENT` say.
        filename: The path as it was given.
    """

    def __init__(self, number: int, message: str, path: str) -> None:
        super().__init__(number, message, path)

    def __str__(self) -> str:
        return visible(str(self.strerror))


class ProcessTimeout(GymnastError, TimeoutError):
    """A process in a box has not ended, written or read in time. It goes on."""


class ProcessInputClosed(GymnastError, BrokenPipeError):
    """A process in a box was written to after it had ended, or closed its stdin."""


class SandboxBroken(GymnastError, RuntimeError):
    """The box of an episode broke after the policy had begun to act in it.

    It is not an `InfrastructureError`: the episode ends with reward 0 and is not retried.
    """


class TooManyFailures(GymnastError, RuntimeError):
    """More episodes failed in one step than `max_failed_episodes` allows."""


class Diverged(GymnastError, FloatingPointError):
    """Too many optimisation steps in a row had a loss or a gradient that is not finite."""


class DiskFull(GymnastError, OSError):
    """The disk is full. What the run wrote before is intact."""


class CheckpointError(GymnastError, RuntimeError):
    """A checkpoint is damaged, missing, or from another run."""


def first_line(error: BaseException) -> str:
    """The first line of another library's exception; all of it, if that ends with a colon."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        return type(error).__name__
    return " ".join(lines)[:400] if lines[0].endswith(":") else lines[0]


def described(error: BaseException) -> str:
    """Return the type and the message of an exception of other code: "KeyError: 'answer'"."""
    try:
        text = str(error)
    except KeyboardInterrupt:
        raise
    except BaseException:  # `__str__` is other code too
        text = ""
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def shown(value: Any, most: int = 200) -> str:
    """Return the repr of a value of other code, which may be long or may not have one.

    Args:
        value: Any object; its `__repr__` may raise, as that of an int of 4,301 digits does.
        most: How many characters are kept; "..." follows where others are left out.
    """
    try:
        text = repr(value)
    except KeyboardInterrupt:
        raise
    except BaseException:
        text = _SHORT.repr(value)
    return text if len(text) <= most else text[:most] + "..."


class _ShortRepr(reprlib.Repr):
    """Shows an object that has no repr as `<Type instance at 0x...>`, wherever it stands."""

    def repr1(self, x: Any, level: int) -> str:
        try:
            return super().repr1(x, level)
        except KeyboardInterrupt:
            raise
        except BaseException:
            number = f" of {x.bit_length()} bits" if isinstance(x, int) else ""
            return f"<{type(x).__name__} instance{number}>"


_SHORT = _ShortRepr()
