"""A box that a pool has lent: closing it frees its place.

Left out: the pool (`pool.py`), and everything that the box itself does.
"""

import weakref
from collections.abc import Callable, Mapping, Sequence
from queue import SimpleQueue

from gymnast.sandboxes.base import MAX_FILE_BYTES, Sandbox
from gymnast.sandboxes.spec import ExecResult


class PooledSandbox(Sandbox):
    """Hands every call on to the backend's box; `close` also tells the pool, once.

    One that is dropped without `close` is closed when it is garbage.

    Args:
        box: The backend's box.
        end: Closes that box and frees its place. Must not refer to this object.
        later: Where to leave `end` when this is garbage: a collection may come at any line of any
            thread, in one that holds the pool's lock, too. Putting into this queue needs none.

    Attributes:
        box: The backend's box, for what only that backend has.
    """

    def __init__(
        self, box: Sandbox, end: Callable[[], None], later: "SimpleQueue[Callable[[], None]]"
    ) -> None:
        self.box = box
        self._end = end
        self._when_garbage = weakref.finalize(self, later.put, end)
        self._when_garbage.atexit = False  # then the box itself sees to it

    def exec(
        self,
        command: str | Sequence[str],
        *,
        stdin: str | bytes | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
        max_output_bytes: int | None = None,
    ) -> ExecResult:
        """See `Sandbox.exec`."""
        return self.box.exec(
            command,
            stdin=stdin,
            cwd=cwd,
            env=env,
            timeout_s=timeout_s,
            max_output_bytes=max_output_bytes,
        )

    def python(
        self, code: str, *, timeout_s: float | None = None, max_output_bytes: int | None = None
    ) -> ExecResult:
        """See `Sandbox.python`."""
        return self.box.python(code, timeout_s=timeout_s, max_output_bytes=max_output_bytes)

    def read_file(self, path: str, *, max_bytes: int = MAX_FILE_BYTES) -> bytes:
        """See `Sandbox.read_file`."""
        return self.box.read_file(path, max_bytes=max_bytes)

    def write_file(self, path: str, data: str | bytes) -> None:
        """See `Sandbox.write_file`."""
        self.box.write_file(path, data)

    @property
    def alive(self) -> bool:
        """See `Sandbox.alive`; as cheap as the backend's."""
        return self.box.alive

    def ping(self, *, timeout_s: float = 5.0) -> bool:
        """See `Sandbox.ping`."""
        return self.box.ping(timeout_s=timeout_s)

    def close(self) -> None:
        """See `Sandbox.close`; the place in the pool is free when this returns."""
        if self._when_garbage.detach() is None:
            self.box.close()  # again
        else:
            self._end()
