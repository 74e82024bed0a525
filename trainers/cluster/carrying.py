"""Objects as bytes, for a worker that has the same packages and none of the user's files.

Classes and functions of `__main__`, a notebook, a file or a module beside the program are carried
by value; those of installed packages by name.
"""

import hashlib
import pickle
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, NamedTuple, cast

from gymnast.errors import ConfigError, GymnastError, described

# A longer pickle holds weights: such an agent is asked where it is.
LARGEST_AGENT_BYTES = 16 * 2**20


def dumps(value: Any, *, most_bytes: int | None = None) -> bytes:
    """Pickle a value, with the user's own classes and functions in it.

    Args:
        value: What to pickle.
        most_bytes: How long the pickle may be.

    Raises:
        TooLong: It is longer.
        Exception: Something in it cannot be pickled.
    """
    from ray import cloudpickle

    sink = _Sink(most_bytes)
    with _by_value(cloudpickle):
        cloudpickle.dump(value, sink, protocol=5)
    return bytes(sink.content)


def loads(pickled: bytes) -> Any:
    """The value of a pickle."""
    return pickle.loads(pickled)


class TooLong(Exception):
    """A pickle is longer than it may be."""


class _Sink:
    """A file that is not longer than it may be."""

    def __init__(self, most_bytes: int | None) -> None:
        self.content = bytearray()
        self._most = most_bytes

    def write(self, data: Any) -> int:
        """Take what the pickler writes."""
        size = memoryview(data).nbytes
        if self._most is not None and len(self.content) + size > self._most:
            raise TooLong(f"it takes more than {self._most // 2**20} MiB")
        self.content += data
        return size


@contextmanager
def _by_value(cloudpickle: Any) -> Iterator[None]:
    """Within the block, what the user's own modules define is pickled by value."""
    known = cloudpickle.list_registry_pickle_by_value()
    own = [module for name, module in [*sys.modules.items()] if _is_own(name, module)]
    own = [module for module in own if module.__name__ not in known]
    for module in own:
        cloudpickle.register_pickle_by_value(module)
    try:
        yield
    finally:
        for module in own:
            cloudpickle.unregister_pickle_by_value(module)


_INSTALLED = tuple({sysconfig.get_path(name) for name in ("stdlib", "platstdlib")})


def _is_own(name: str, module: ModuleType | None) -> bool:
    """Whether a module is the user's: a file that is neither installed nor a part of Gymnast."""
    file = getattr(module, "__file__", None)
    if not file or name == "__main__" or getattr(module, "__name__", None) != name:
        return False
    if name.partition(".")[0] == "gymnast":
        return False
    return "site-packages" not in file and not file.startswith(_INSTALLED)


def key_of(pickled: bytes) -> str:
    """A name for a pickle."""
    return hashlib.sha256(pickled).hexdigest()[:32]


class Raised(NamedTuple):
    """An exception on its way: itself, its cause, and the traceback as text."""

    error: Exception
    cause: Exception | None
    traceback: str

    def raised(self, place: str) -> Exception:
        """The exception, which says where it was raised.

        Args:
            place: The worker, for the traceback's heading.
        """
        error, cause = self.error, self.cause
        error.__cause__ = cause
        (error if cause is None else cause).add_note(f"On {place}:\n{self.traceback}")
        return error


def as_raised(error: BaseException) -> Raised:
    """An exception that can be sent, whatever the user's code raised."""
    cause = error.__cause__
    text = "".join(traceback.format_exception(cause or error)).rstrip()
    return Raised(_sendable(error), None if cause is None else _sendable(cause), text)


def _sendable(error: BaseException) -> Exception:
    """The exception itself if it survives pickling; else a RuntimeError that says the same."""
    try:
        copy = loads(dumps(error))
        if isinstance(copy, Exception) and str(copy) == str(error):
            return cast(Exception, error)
    except Exception:  # what is in it, or its constructor, does not allow it
        pass
    return RuntimeError(described(error))


def cannot_be_sent(what: str, error: Exception) -> ConfigError:
    """The error about something that cannot be pickled.

    Args:
        what: "the environment", say.
        error: What pickling it raised.
    """
    reason = str(error) if isinstance(error, GymnastError) else f"{type(error).__name__}: {error}"
    return ConfigError(
        f"rollouts.backend: ray: {what} cannot be sent to the workers, because something in it "
        f"cannot be pickled ({reason:.300}). Make what holds a connection, a lock or an open file "
        "where it is used, in `setup` or in the environment's __init__, and not in a module or a "
        "factory's closure"
    )
