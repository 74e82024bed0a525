"""The thread on which an engine runs while it has requests.

Requests come from any thread and any event loop; the engine knows of neither.
"""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from gymnast.agents.engine.cpu import release_team
from gymnast.agents.engine.engine import Engine
from gymnast.agents.engine.request import Request
from gymnast.agents.engine.state_engine import StateEngine
from gymnast.errors import InfrastructureError


class BusyClock:
    """Adds up the seconds in which there was work; one thread winds it, any thread reads it."""

    def __init__(self) -> None:
        self._state: tuple[float, float | None] = (0.0, None)  # before, and since when

    def start(self) -> None:
        """There is work from now on."""
        total, since = self._state
        if since is None:
            self._state = (total, time.perf_counter())

    def stop(self) -> None:
        """There is none from now on."""
        self._state = (self.seconds, None)

    @property
    def seconds(self) -> float:
        """Return the seconds so far, those of work that goes on included."""
        total, since = self._state
        return total if since is None else total + time.perf_counter() - since


class EngineThread:
    """Runs an engine; begins with the first request.

    Args:
        engine: Called by this thread alone.

    Attributes:
        busy: The time in which the engine had requests and was not held.
    """

    def __init__(self, engine: Engine | StateEngine) -> None:
        self._engine = engine
        self._arrived: list[Request] = []
        self._stale = False
        self._stopping = False
        self._resting = True
        self._holds, self._stepping = 0, False
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None
        self.busy = BusyClock()

    def submit(self, requests: Sequence[Request]) -> None:
        """Hand requests over, all between two steps of the engine."""
        with self._wake:
            if self._resting:
                release_team()  # the caller's: it may have trained before, and waits now
            self._arrived += requests
            self._resting = False
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="gymnast-engine", daemon=True
                )
                self._thread.start()
            self._wake.notify_all()

    def forget(self) -> None:
        """Let the engine drop what it computed, before its next step."""
        with self._wake:
            self._stale = True
            self._wake.notify_all()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Within the block the engine does nothing: its requests wait between two steps.

        Blocks may be nested.
        """
        self._hold()
        try:
            yield
        finally:
            self._let_go()

    @contextmanager
    def resumed(self) -> Iterator[None]:
        """Within the block, which is in one of `held`, the engine goes on."""
        self._let_go()
        try:
            yield
        finally:
            self._hold()

    def _hold(self) -> None:
        with self._wake:
            self._holds += 1
            self._wake.wait_for(lambda: not self._stepping)

    def _let_go(self) -> None:
        with self._wake:
            self._holds -= 1
            self._wake.notify_all()

    def wait_idle(self) -> None:
        """Block until the engine no longer uses the model: it has no requests, or is held."""
        with self._wake:
            self._wake.wait_for(lambda: self._resting or (self._holds and not self._stepping))

    def stop(self) -> None:
        """End the thread. If Python ended first, a thread inside torch would abort the process.

        So it goes when a run is interrupted, or fails, amid its episodes.
        """
        with self._wake:
            self._stopping = True
            self._wake.notify_all()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _run(self) -> None:
        engine = self._engine
        while True:
            with self._wake:
                self._stepping = False
                self._wake.notify_all()
                while not (self._stopping or self._has_work):
                    self.busy.stop()
                    if engine.idle and not self._arrived:
                        self._rest()
                    elif self._holds:
                        release_team()  # somebody else computes meanwhile
                    self._wake.wait()
                if self._stopping:
                    self.busy.stop()
                    self._rest()
                    return
                self.busy.start()
                engine.waiting += self._arrived
                self._arrived = []
                stale, self._stale = self._stale, False
                self._stepping = True
            if stale:
                engine.forget()
            try:
                engine.step()
            except Exception as error:
                lost = InfrastructureError(f"the engine failed: {type(error).__name__}: {error}")
                lost.__cause__ = error
                engine.fail(lost)

    @property
    def _has_work(self) -> bool:
        return not self._holds and bool(self._arrived or self._stale or not self._engine.idle)

    def _rest(self) -> None:
        release_team()
        self._resting = True
        self._wake.notify_all()
