"""A policy agent without a model in the training process: a server has one of its own.

    ProcessAgent        in each training process; asks the server for completions
    python process_agent.py ADDRESS     the server: a tiny model of its own, with other weights

The server refuses to sample while weights are being changed, counts versions, and notes in order
what it was asked for. Several agents may share one (`address=`); then that of process 0 sends.
"""

import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import asdict
from multiprocessing.connection import Client, Connection, Listener
from typing import Any, NamedTuple

import numpy as np
import torch

from gymnast.agents import PolicyWeights
from gymnast.agents.engine.sampling import Draws, sample
from gymnast.agents.loading.tiny import tiny_model
from gymnast.errors import InfrastructureError
from gymnast.types import Completion, Sampling, VersionSpan

KEY = b"a test's own"
START_S = 120.0


class Event(NamedTuple):
    """What the server did: "sample", "refuse", "begin" or "end" (of new weights)."""

    kind: str
    process: int
    version: int
    context: tuple[int, ...] = ()


class Server:
    """A server that ends with this object, or with Python.

    Attributes:
        address: Of its socket.
    """

    def __init__(self, update_s: float = 0.0) -> None:
        folder = tempfile.TemporaryDirectory(prefix="agent-", dir="/tmp")
        self.address = f"{folder.name}/socket"
        command = [sys.executable, __file__, self.address, str(update_s)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE)
        self.close = weakref.finalize(self, _end, self._process, folder)

    def connect(self) -> "Connection[Any, Any]":
        """A connection of its own for each client."""
        return connect(self.address)

    def events(self) -> list[Event]:
        """What it did so far."""
        with self.connect() as connection:
            connection.send(("events",))
            return [Event(*event) for event in connection.recv()]


def connect(address: str) -> "Connection[Any, Any]":
    deadline = time.monotonic() + START_S
    while True:
        try:
            return Client(address, "AF_UNIX", authkey=KEY)
        except (FileNotFoundError, ConnectionRefusedError):
            if time.monotonic() > deadline:
                raise InfrastructureError(f"no server at {address}") from None
            time.sleep(0.05)


def _end(process: "subprocess.Popen[bytes]", folder: "tempfile.TemporaryDirectory[str]") -> None:
    process.kill()
    process.wait()
    if process.stdin is not None:
        process.stdin.close()
    folder.cleanup()


class ProcessAgent:
    """Samples in a server; see the top of this file.

    Args:
        model: That is trained; it is not used.
        tokenizer: The model's; it is not used.
        address: Of a server that others may use as well; by default the agent starts its own.
    """

    def __init__(self, model: Any, tokenizer: Any = None, *, address: str | None = None) -> None:
        self._server = Server() if address is None else None
        self.address = address or self._server.address  # type: ignore[union-attr]
        self._process = int(os.environ.get("RANK", "0"))
        self._connection = connect(self.address)
        self._asking = threading.Lock()
        self._awake = False
        self.context_length = self._ask("context_length")

    def events(self) -> list[Event]:
        """What the server did so far."""
        return [Event(*event) for event in self._ask("events")]

    async def generate(self, context_ids: list[int], sampling: Sampling) -> Completion:
        """See `gymnast.agents.Agent`."""
        return await asyncio.to_thread(self._generate, list(context_ids), sampling)

    def _generate(self, context_ids: list[int], sampling: Sampling) -> Completion:
        found = self._ask("generate", self._process, context_ids, asdict(sampling), awake=True)
        if found is None:
            raise InfrastructureError("the server's weights are being changed")
        ids, logprobs, stop, version = found
        return Completion(ids, logprobs, stop, versions=[VersionSpan(0, len(ids), version)])

    @contextlib.contextmanager
    def awake(self) -> Iterator[None]:
        """See `gymnast.agents.PolicyAgent`."""
        self._awake = True
        try:
            yield
        finally:
            self._awake = False
            with self._asking:  # whatever it still samples is done
                pass

    def update_weights(self, weights: PolicyWeights, version: int) -> None:
        """See `gymnast.agents.PolicyAgent`; process 0 sends."""
        if weights.process_index == 0:
            self._ask("begin", self._process, version)
            for name, weight in weights:
                self._ask("weight", name, weight.float().cpu().numpy())
            self._ask("end", self._process, version)

    def _ask(self, *question: Any, awake: bool = False) -> Any:
        with self._asking:
            if awake and not self._awake:
                raise InfrastructureError("the agent rests")
            try:
                self._connection.send(question)
                answer = self._connection.recv()
            except (EOFError, OSError) as error:
                raise InfrastructureError(f"the server is lost: {error!r}") from error
        if isinstance(answer, Exception):
            raise answer
        return answer


# --- The server


class Served:
    """The server's model, its version, and what it did."""

    def __init__(self, update_s: float) -> None:
        self._model = tiny_model(seed=1)  # not the weights that are trained
        self._update_s = update_s
        self._version, self._changing = -1, False
        self._events: list[Event] = []
        self._lock = threading.Lock()
        self._answers: dict[str, Callable[..., Any]] = {
            "context_length": self.context_length,
            "events": lambda: [tuple(event) for event in self._events],
            "generate": self.generate,
            "begin": self.begin,
            "weight": self.take,
            "end": self.end,
        }

    def serve(self, connection: "Connection[Any, Any]") -> None:
        """Answer one client, until it has gone."""
        with contextlib.suppress(EOFError, OSError):
            while True:
                kind, *given = connection.recv()
                try:
                    with self._lock:
                        answer = self._answers[kind](*given)
                except Exception as error:
                    answer = error
                if kind == "begin":
                    time.sleep(self._update_s)
                connection.send(answer)

    def context_length(self) -> int:
        return int(self._model.config.max_position_embeddings)

    def begin(self, process: int, version: int) -> None:
        self._changing = True
        self._events.append(Event("begin", process, version))

    @torch.no_grad()
    def take(self, name: str, weight: np.ndarray) -> None:
        dict(self._model.named_parameters())[name].copy_(torch.from_numpy(weight))

    def end(self, process: int, version: int) -> None:
        self._changing, self._version = False, version
        self._events.append(Event("end", process, version))

    @torch.no_grad()
    def generate(self, process: int, context: list[int], settings: dict[str, Any]) -> Any:
        kind = "refuse" if self._changing else "sample"
        self._events.append(Event(kind, process, self._version, tuple(context)))
        if self._changing:
            return None
        sampling = Sampling(**settings)
        draws, ids, logprobs = Draws(sampling), list[int](), list[float]()
        while len(ids) < min(sampling.max_new_tokens, self.context_length() - len(context)):
            logits = self._model(torch.tensor([context + ids]), use_cache=False).logits[:, -1]
            (token,), (logprob,) = sample(logits, [draws], [len(ids)], [context + ids])
            ids.append(token)
            logprobs.append(logprob)
            if token in sampling.stop_ids:
                return ids, logprobs, "stop", self._version
        return ids, logprobs, "length", self._version


def main(address: str, update_s: str) -> None:
    torch.set_num_threads(1)
    served = Served(float(update_s))
    threading.Thread(target=_end_with_parent, daemon=True).start()
    with Listener(address, "AF_UNIX", authkey=KEY, backlog=8) as listener:
        while True:
            threading.Thread(target=served.serve, args=(listener.accept(),), daemon=True).start()


def _end_with_parent() -> None:
    sys.stdin.read()
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
