"""The boxes of this process that are open, and closing them all when the process must end."""

import atexit
import os
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

END_S = 10.0  # for all boxes to be discarded at exit

_lock = threading.Lock()
_living: list[tuple["weakref.finalize[..., Any]", threading.Event]] = []
_before: list[Callable[[], object]] = []


def when_gone(box: object, discard: Callable[[], object]) -> "weakref.finalize[..., Any]":
    """Discard a box when it is garbage, at exit, or when the result is called: once.

    A fork of this process does nothing: the box is not its own.
    """
    done = threading.Event()
    finalizer = weakref.finalize(box, _discard, os.getpid(), discard, done)
    with _lock:
        _living[:] = [other for other in _living if not other[1].is_set()]
        _living.append((finalizer, done))
    return finalizer


def before_discarding(function: Callable[[], object]) -> None:
    """Call a function before `discard_all` discards boxes: one that stops the opening of more."""
    _before.append(function)


def discard_all(*, timeout_s: float) -> None:
    """Discard every box of this process, all at once, and wait for it at most so long."""
    try:
        for function in _before:
            function()
    finally:
        _discard_living(timeout_s)


def _discard_living(timeout_s: float) -> None:
    with _lock:
        boxes = list(_living)
    for finalizer, _ in boxes:
        try:
            threading.Thread(target=finalizer, daemon=True).start()
        except RuntimeError:  # no more threads: at exit, from Python 3.12 on
            finalizer()
    deadline = time.monotonic() + timeout_s
    for _, done in boxes:  # those that another thread is discarding among them
        done.wait(max(0.0, deadline - time.monotonic()))


def _discard(process: int, discard: Callable[[], object], done: threading.Event) -> None:
    try:
        if os.getpid() == process:
            discard()
    finally:
        done.set()


def _discard_at_exit() -> None:
    """Discard what is left, and wait for threads that are discarding: the exit would kill them."""
    discard_all(timeout_s=END_S)


# What is registered last runs first, and `weakref` registers with the first finalizer that there
# is. Once weakref's own function has run, no finalizer does anything: so it must come after this.
weakref.finalize(_discard_at_exit, int)
atexit.register(_discard_at_exit)
