"""Waiting for descriptors and moments, and calling what waits for each."""

from __future__ import annotations

import math
import select
import time
from typing import Callable, Dict, Tuple

_LONGEST_S = 3600.0


class Loop:
    """The one place where the worker waits.

    What is called must bear being called for nothing, as a descriptor's number may be reused.
    """

    def __init__(self) -> None:
        self._poll = select.poll()
        self._calls: Dict[int, Callable[[], object]] = {}
        self._alarms: Dict[str, Tuple[float, Callable[[], object]]] = {}

    def watch(self, fd: int, events: int, call: Callable[[], object]) -> None:
        """Call a function whenever a descriptor is ready, or at its end, until it is forgotten.

        Args:
            fd: The descriptor.
            events: As for `poll`.
            call: What to call.
        """
        self._poll.register(fd, events)
        self._calls[fd] = call

    def forget(self, fd: int) -> None:
        """Watch a descriptor no longer. It must still be open."""
        if self._calls.pop(fd, None) is not None:
            self._poll.unregister(fd)

    def set_alarm(self, name: str, when: float, call: Callable[[], object]) -> None:
        """Call a function once, at a time of the monotonic clock, unless it is called off."""
        self._alarms[name] = when, call

    def call_off(self, name: str) -> None:
        """Forget an alarm."""
        self._alarms.pop(name, None)

    def turn(self, deadline: float = math.inf) -> None:
        """Wait until something is ready, at most until a time of the monotonic clock."""
        until = min([deadline, *(when for when, _ in self._alarms.values())])
        left = min(max(0.0, until - time.monotonic()), _LONGEST_S)
        for fd, _ in self._poll.poll(math.ceil(left * 1000)):
            call = self._calls.get(fd)
            if call is not None:
                call()
        now = time.monotonic()
        for name, (when, call) in list(self._alarms.items()):
            if when <= now and name in self._alarms:
                del self._alarms[name]
                call()
