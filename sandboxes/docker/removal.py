"""Removing the containers of this process for certain, even if the engine fails meanwhile."""

import contextlib
import os
import threading
import time
from typing import Any

import docker.errors

from gymnast.sandboxes.docker.engine import ENGINE_ERRORS
from gymnast.visible import visible_logger

GONE_S = 5.0  # for the engine to end what it is removing

log = visible_logger("gymnast.sandboxes")

# Containers of this process that the engine could not be told to remove: (process, name), client.
_left: dict[tuple[int, str], Any] = {}
_lock = threading.Lock()


def remove(api: Any, container: str) -> None:
    """Kill and remove a container, and wait until it is gone. One that is gone already is fine.

    Raises:
        ENGINE_ERRORS: The engine does not do it.
    """
    with contextlib.suppress(docker.errors.NotFound):
        with contextlib.suppress(docker.errors.APIError):  # most are not paused
            api.unpause(container)  # else the engine waits long for frozen processes to die
        try:
            api.remove_container(container, force=True, v=True)
        except docker.errors.APIError as error:
            if error.status_code != 409:  # the engine is removing it already
                raise
            _wait_until_gone(api, container)


def remove_some_time(api: Any, container: str) -> None:
    """Remove a container now, or if the engine fails, when `remove_left` is called."""
    try:
        remove(api, container)
    except ENGINE_ERRORS as error:
        log.warning("container %s is removed later: %s", container, error)
        with _lock:
            _left[os.getpid(), container] = api


def remove_left() -> None:
    """Remove the containers that could not be removed before: the engine answers again."""
    if not _left:
        return
    with _lock:
        left, here = list(_left.items()), os.getpid()
        _left.clear()
    for (process, container), api in left:
        if process == here:
            remove_some_time(api, container)


def _wait_until_gone(api: Any, container: str) -> None:
    deadline = time.monotonic() + GONE_S
    while time.monotonic() < deadline:
        api.inspect_container(container)  # NotFound ends the wait
        time.sleep(0.01)
    log.warning("container %s is still being removed", container)
