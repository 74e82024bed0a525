"""An event loop on a thread of its own, which plays while the main thread trains."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from gymnast.visible import visible_logger

T = TypeVar("T")

# Seconds in which a loop ends; cancelled episodes have had theirs before.
END_S = 30.0
logger = visible_logger(__name__)


class Background:
    """Runs coroutines on its loop until it is closed."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        # A daemon: a hanging cleanup does not keep Python from ending.
        self._thread = threading.Thread(target=self._run, name="gymnast-ahead", daemon=True)
        self._thread.start()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine there; blocks this thread until it is over."""
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    async def follow(
        self,
        work: Callable[[Callable[[int], object]], Coroutine[Any, Any, T]],
        on_progress: Callable[[int], object],
    ) -> T:
        """Run a coroutine there from another loop, which hears of its progress.

        Args:
            work: Makes the coroutine, given what it calls with a number, which does not block.
            on_progress: Is called with the number on the caller's loop.
        """
        loop, told = asyncio.get_running_loop(), asyncio.Queue[int | None]()
        made = work(lambda number: loop.call_soon_threadsafe(told.put_nowait, number))
        working = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(made, self._loop))
        working.add_done_callback(lambda _: told.put_nowait(None))
        try:
            while (number := await told.get()) is not None:
                on_progress(number)
            return await working
        finally:
            working.cancel()

    def close(self) -> None:
        """End the loop, and what is left on it."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(END_S)
        if self._thread.is_alive():
            logger.warning("what is played beside training did not end within %g s", END_S)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.get_loop().run_forever()
