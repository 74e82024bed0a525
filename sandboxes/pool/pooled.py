"""A box that a pool has lent: closing it frees its place.

Left out: the pool (`pool.py`), and everything that the box itself does.
"""

import weakref
from collections.abc import Callable
from queue import SimpleQueue

from gymnast.sandboxes.contract.base import Sandbox
from gymnast.sandboxes.contract.forwarding import ForwardingSandbox


class PooledSandbox(ForwardingSandbox):
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

    def _behind(self) -> Sandbox:
        return self.box

    def close(self) -> None:
        """See `Sandbox.close`; the place in the pool is free when this returns."""
        if self._when_garbage.detach() is None:
            self.box.close()  # again
        else:
            self._end()
