"""Scores of answers, found in a process of their own, which may hang, break or fill its memory.

`1e999999999` keeps a scorer busy for ever that reads it as a fraction. Python can end no thread,
but a process. Processes stay for the next scores, one for each core at most, and end with this one.
"""

import atexit
import json
import math
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from gymnast.envs.adapters import scoring_worker
from gymnast.errors import ConfigError


class Score(NamedTuple):
    """A score, and why it is 0 if none was found."""

    value: float
    failure: str = ""


@dataclass(frozen=True)
class Question:
    """A question of a generator of reasoning-gym.

    Attributes:
        name: The generator's.
        module: That registers it.
        config: Its settings.
        entry: The question, as the generator made it.
    """

    name: str
    module: str
    config: Mapping[str, Any]
    entry: Mapping[str, Any]


def score(question: Question, answer: str, timeout_s: float) -> Score:
    """Let a generator score an answer.

    Args:
        question: What was asked.
        answer: What was answered.
        timeout_s: Seconds of a core that it may take, so that a busy machine changes no score.

    Raises:
        ConfigError: The generator cannot be made in another process.
    """
    name, module, config, entry = question.name, question.module, question.config, question.entry
    try:
        request = pickle.dumps((name, module, dict(config), entry, answer))
    except Exception as error:
        raise _unreadable(question, f"{type(error).__name__}: {error}") from error
    with _room:
        process = _idle_process() or _Process()
        reply = process.ask(pickle.dumps((timeout_s, sys.path, request)))
        if reply is not None:
            _idle.append(process)
    if reply is None:
        return Score(0.0, process.end(timeout_s))
    if "unreadable" in reply:
        raise _unreadable(question, reply["unreadable"])
    if "failure" in reply:
        return Score(0.0, reply["failure"])
    value = reply["score"]
    return Score(value) if math.isfinite(value) else Score(0.0, f"the score is {value}")


def _unreadable(question: Question, problem: str) -> ConfigError:
    return ConfigError(
        f"reasoning_gym:{question.name} scores in a process of its own, where it cannot be made: "
        f"{problem}. Define it in a module, and let its settings be plain values."
    )


class _Process:
    """A running `scoring_worker.py`."""

    def __init__(self) -> None:
        few = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, scoring_worker.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **few},
        )
        self._parent = os.getpid()

    @property
    def is_usable(self) -> bool:
        """Whether it runs, and is not that of a process which this one was forked from."""
        return self._parent == os.getpid() and self._process.poll() is None

    def ask(self, request: bytes) -> Any:
        """The reply to a request; None if the process ended."""
        assert self._process.stdin is not None and self._process.stdout is not None
        try:
            self._process.stdin.write(request)
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except OSError:
            return None
        return json.loads(line) if line.endswith(b"\n") else None

    def end(self, timeout_s: float = 0) -> str:
        """Let it end, and say how it did."""
        assert self._process.stdin is not None and self._process.stdout is not None
        for stream in (self._process.stdin, self._process.stdout):
            try:
                stream.close()
            except OSError:  # it ended before it read all
                continue
        code = self._process.wait()
        if code in (-signal.SIGPROF, -signal.SIGALRM):
            return f"the scorer was ended after {timeout_s:g} s"
        return f"the scorer's process ended with the exit code {code}"


_room = threading.BoundedSemaphore(os.cpu_count() or 1)
_idle: list[_Process] = []


def _idle_process() -> _Process | None:
    while _idle:
        try:
            process = _idle.pop()
        except IndexError:  # another thread was quicker
            return None
        if process.is_usable:
            return process
    return None


@atexit.register
def _end_all() -> None:
    while process := _idle_process():
        process.end()
