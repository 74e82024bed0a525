"""An engine in memory, whose boxes open, die and fail as a test says; and taking from threads."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

import pytest

from gymnast.errors import SandboxDead, SandboxTemporarilyUnavailable
from gymnast.sandboxes import ExecResult, Sandbox
from gymnast.sandboxes.pool.pool import close_shared_pools

T = TypeVar("T")


class MemoryBox(Sandbox):
    """Runs nothing: what a pool needs of a box is that it lives, ends, and says so."""

    def __init__(self, engine: "MemoryEngine", number: int) -> None:
        self.engine, self.number = engine, number
        self.lives, self.closed = True, 0

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
        if not self.lives:
            raise SandboxDead(f"box {self.number} is dead")
        return ExecResult(0, str(self.number), "", "ok")

    def python(
        self, code: str, *, timeout_s: float | None = None, max_output_bytes: int | None = None
    ) -> ExecResult:
        return self.exec(code)

    def read_file(self, path: str, *, max_bytes: int = 0) -> bytes:
        return b""

    def write_file(self, path: str, data: str | bytes) -> None:
        pass

    def close(self) -> None:
        with self.engine.lock:
            self.lives = False
            self.engine.living -= self.closed == 0
            self.closed += 1


class MemoryEngine:
    """Opens boxes, unless `failure` is set or the gate is shut."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.boxes: list[MemoryBox] = []
        self.living = self.most_living = self.tries = self.trying = self.most_trying = 0
        self.failure: BaseException | None = None
        self.gate = threading.Event()
        self.gate.set()

    def open(self) -> MemoryBox:
        with self.lock:
            self.tries += 1
            self.trying += 1
            self.most_trying = max(self.trying, self.most_trying)
        assert self.gate.wait(30)
        with self.lock:
            self.trying -= 1
            if self.failure is not None:
                raise self.failure
            self.boxes.append(MemoryBox(self, len(self.boxes)))
            self.living += 1
            self.most_living = max(self.living, self.most_living)
            return self.boxes[-1]

    def break_down(self, reason: str = "the engine is down") -> None:
        self.failure = SandboxTemporarilyUnavailable(reason)

    def mend(self) -> None:
        self.failure = None


def in_thread(function: Callable[[], T]) -> "Future[T]":
    """Call it on a thread of its own."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def eventually(holds: Callable[[], bool], *, within_s: float = 30.0) -> bool:
    """Wait until something holds."""
    deadline = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.001)
    return True


def local_workers() -> list[int]:
    """The process ids of the workers of this process's local boxes."""
    found = []
    for task in Path("/proc/self/task").iterdir():
        try:
            children = [int(pid) for pid in (task / "children").read_text().split()]
        except OSError:
            continue  # the thread has ended
        for pid in children:
            with contextlib.suppress(OSError):
                if b"GYMNAST_LOCAL_SANDBOX=" in Path(f"/proc/{pid}/environ").read_bytes():
                    found.append(pid)
    return found


@pytest.fixture(scope="module", autouse=True)
def _no_boxes_kept_ready_for_the_next_module() -> Iterator[None]:
    yield
    close_shared_pools()


@pytest.fixture
def engine() -> Iterator[MemoryEngine]:
    made = MemoryEngine()
    yield made
    made.gate.set()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pauses between tries, and before openings, are too short to be noticed."""
    monkeypatch.setattr("gymnast.sandboxes.pool.breaker.LONGEST_PAUSE_S", 0.002)
    monkeypatch.setattr("gymnast.sandboxes.pool.filling.JITTER_S", 0.0)
