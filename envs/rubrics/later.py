"""Results that are not there yet, of parts that are asked at the same time.

A coroutine that holds others cannot give them up: closed before it began, it leaves them unawaited,
of which Python warns. These can be closed with what they hold.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, eq=False)
class Later(Awaitable[Any]):
    """What a function makes of a result once that is there; waits for what it returns, too."""

    found: Any
    then: Callable[[Any], Any]

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._awaited().__await__()

    def close(self) -> None:
        """Give up the result, before it is awaited."""
        give_up([self.found])

    async def _awaited(self) -> Any:
        result = self.then(await self.found)
        while inspect.isawaitable(result):
            result = await result
        return result


@dataclass(frozen=True, eq=False)
class Together(Awaitable[list[Any]]):
    """Results of which some have to be awaited, which is done at the same time."""

    begun: Sequence[Any]

    def __await__(self) -> Generator[Any, Any, list[Any]]:
        return together(self.begun).__await__()

    def close(self) -> None:
        """Give them up, before they are awaited."""
        give_up(self.begun)


async def together(begun: Sequence[Any]) -> list[Any]:
    """Wait for those that can be awaited; raises the first exception when all are done."""
    waiting = [one if inspect.isawaitable(one) else _at_once(one) for one in begun]
    found = await asyncio.gather(*waiting, return_exceptions=True)
    for one in found:
        if isinstance(one, BaseException):
            raise one
    return found


async def _at_once(found: Any) -> Any:
    return found


def give_up(begun: Sequence[Any]) -> None:
    """Close what nobody will await."""
    for one in begun:
        if isinstance(one, Later | Together) or inspect.iscoroutine(one):
            one.close()
