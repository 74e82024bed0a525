"""Servers that the first of several training processes starts for all of them."""

import platform
from collections.abc import Callable
from typing import Any, NamedTuple

from torch import distributed

from gymnast.agents.vllm.launch import Launched
from gymnast.errors import ConfigError


class Reach(NamedTuple):
    """How servers are asked."""

    urls: list[str]
    api_key: str


def launch_for_all(start: Callable[[], Launched]) -> tuple[Launched | None, Reach]:
    """Start servers, in the first process alone; a collective call where there are several.

    Args:
        start: Starts them.

    Returns:
        What was started, in the process that did; and how all processes ask it.

    Raises:
        ConfigError: They do not start, also where another process should have started them; or the
            processes are on several machines, which cannot reach servers on 127.0.0.1.
    """
    if not (distributed.is_available() and distributed.is_initialized()):
        alone = start()
        return alone, Reach(alone.urls, alone.api_key)
    machines: list[Any] = [None] * distributed.get_world_size()
    distributed.all_gather_object(machines, platform.node())
    if len({*machines}) > 1:
        raise ConfigError(
            f"launch: the run's processes are on several machines ({', '.join(sorted(machines))}), "
            "and servers that it starts listen on 127.0.0.1 of one; start servers yourself and "
            "give their urls"
        )
    launched: Launched | None = None
    told: list[Any] = [None]
    if distributed.get_rank() == 0:
        try:
            launched = start()
            told = [Reach(launched.urls, launched.api_key)]
        except Exception as error:
            distributed.broadcast_object_list([str(error)], src=0)
            raise
    distributed.broadcast_object_list(told, src=0)
    (reach,) = told
    if isinstance(reach, str):
        raise ConfigError(reach)
    assert isinstance(reach, Reach)
    return launched, reach
