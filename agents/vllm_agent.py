"""An agent that samples from vLLM servers, which have the policy's weights in other processes.

agents/vllm/wire.py       a request and its answer
agents/vllm/server.py     one server
agents/vllm/servers.py    several: which one is asked, what happens when one is lost
agents/vllm/handover.py   new weights
agents/vllm/launch.py     servers that a run starts
"""

import asyncio
import os
import threading
import weakref
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from gymnast.agents.policy import PolicyWeights
from gymnast.agents.vllm.handover import CurrentWeights
from gymnast.agents.vllm.launch import Launched, make_launch
from gymnast.agents.vllm.server import Server, open_session
from gymnast.agents.vllm.servers import Servers
from gymnast.agents.vllm.wire import generate_body, read_answer
from gymnast.errors import ConfigError, ServerLost, UsageError
from gymnast.types import Completion, Sampling

T = TypeVar("T")
START_TIMEOUT_S = 60.0


class VLLMAgent:
    """Samples completions from one or more vLLM servers.

        agent = VLLMAgent(["http://127.0.0.1:8000"])
        completion = await agent.generate(ids, Sampling(max_new_tokens=32))

    The servers are vLLM 0.32 or later, started with `--enable-scale-out --logprobs-mode
    processed_logprobs` and, to be trained, `VLLM_SERVER_DEV_MODE=1` (docs/vllm.md).

    Args:
        urls: Of the servers' roots.
        model: The name that they serve the model under.
        tokenizer: The model's; ids beyond it are never sampled.
        api_key_env: The environment variable with the servers' key; none is sent where it is unset.
        weights_folder: A folder that this process and the servers see, for new weights; by default
            in shared memory.
        request_timeout_s: How long one completion may take before its server counts as lost.
        lost_after_s: How long to wait for a server to come back while none answers.

    Attributes:
        samples_while_training: True; see `gymnast.agents.PolicyAgent`.
        context_length: The shortest of the servers' longest contexts, in tokens.

    Raises:
        ConfigError: A server cannot be reached, or cannot be used as it was started.
    """

    samples_while_training = True

    def __init__(
        self,
        urls: Sequence[str],
        *,
        model: str = "policy",
        tokenizer: Any = None,
        api_key_env: str = "VLLM_API_KEY",
        weights_folder: str | None = None,
        request_timeout_s: float = 1800.0,
        lost_after_s: float = 120.0,
    ) -> None:
        if isinstance(urls, str) or not urls:
            raise ConfigError(f"urls: must be a list of URLs of vLLM servers, got {urls!r:.100}")
        self._model, self._tokenizer, self._api_key_env = model, tokenizer, api_key_env
        self._weights = CurrentWeights(None if weights_folder is None else Path(weights_folder))
        self._loop = _Loop()
        self._servers = self._loop.run(self._connect(urls, request_timeout_s, lost_after_s))
        parts = [self._servers.close, self._weights.close]
        self._close = weakref.finalize(self, _close, self._loop, parts)
        try:
            self.context_length = self._loop.run(self._check())
        except BaseException:
            self._close()
            raise

    @property
    def version(self) -> int:
        """Of the weights; see `gymnast.agents.PolicyAgent`."""
        return self._weights.version

    async def _connect(
        self, urls: Sequence[str], request_timeout_s: float, lost_after_s: float
    ) -> Servers:
        session = open_session(os.environ.get(self._api_key_env))
        servers = [Server(url.rstrip("/"), session, self._api_key_env) for url in urls]
        return Servers(
            servers,
            self._weights.load,
            request_timeout_s=request_timeout_s,
            lost_after_s=lost_after_s,
        )

    async def _check(self) -> int:
        """Check that the servers can be used; returns their longest context, in tokens."""
        lengths = []
        for server in self._servers.all:
            try:
                found = await server.ask("GET", "/v1/models", timeout_s=START_TIMEOUT_S)
            except ServerLost as error:
                raise ConfigError(f"urls: a vLLM server cannot be used: {error}") from error
            served = {each["id"]: each for each in found["data"]}
            if self._model not in served:
                raise ConfigError(
                    f"model: {server.url} serves {', '.join(served)}, not {self._model!r}; start "
                    f"it with --served-model-name {self._model}, or name what it serves"
                )
            lengths.append(int(served[self._model]["max_model_len"]))
        return min(lengths)

    async def generate(self, context_ids: list[int], sampling: Sampling) -> Completion:
        """Sample one completion of a context; see `gymnast.agents.Agent`.

        Raises:
            UsageError: The context is empty, or leaves no room for a token.
            NoServers: No server is left.
            InfrastructureError: What the servers answer is no completion.
        """
        return await asyncio.wrap_future(self._loop.begin(self._generate(context_ids, sampling)))

    async def _generate(self, context_ids: list[int], sampling: Sampling) -> Completion:
        length = len(context_ids)
        if not 1 <= length < self.context_length:
            raise UsageError(
                f"generate: the context has {length} tokens, and must have 1 to "
                f"{self.context_length - 1} (context_length {self.context_length} with at least "
                "one sampled token). Set the environment's context_length to the agent's."
            )
        most = min(sampling.max_new_tokens, self.context_length - length)
        answer = await self._servers.generate(
            lambda: generate_body(
                context_ids,
                sampling,
                model=self._model,
                max_tokens=most,
                version=self._weights.name,
            )
        )
        sampled = read_answer(answer, sampling, most)
        spans = self._weights.spans(sampled)
        return Completion(sampled.ids, sampled.logprobs, sampled.stop, versions=spans)

    @contextmanager
    def awake(self) -> Iterator[None]:
        """Do nothing: the servers have a device of their own."""
        yield

    def update_weights(self, weights: PolicyWeights, version: int) -> None:
        """Give every server new weights; process 0 sends, the others wait until all have them.

        Raises:
            NoServers: No server is left.
            ConfigError: A server refuses.
            OSError: The weights cannot be written.
        """
        self._weights.write(weights.model, version)
        self._loop.run(self._servers.load_all())

    def close(self) -> None:
        """Let go of the servers; those that were started for this agent end."""
        self._close()


class _Loop:
    """An event loop on a thread of its own, for as long as an agent lives."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, name="gymnast-vllm")
        self._thread.daemon = True
        self._thread.start()

    def begin(self, coroutine: Coroutine[Any, Any, T]) -> Any:
        """Run a coroutine on the loop; returns a future of its result."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop, and block until it ends."""
        result: T = self.begin(coroutine).result()
        return result

    def stop(self) -> None:
        """End the thread."""
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(5.0)
        if not self._thread.is_alive():
            self.loop.close()


def _close(loop: _Loop, parts: "list[Callable[[], Coroutine[Any, Any, None]]]") -> None:
    """Close the parts of an agent that is closed, garbage, or outlived by Python alone."""
    for close in reversed(parts):
        loop.run(close())
    loop.stop()


def trained_vllm_agent(
    model: Any,
    tokenizer: Any,
    *,
    urls: Sequence[str] | None = None,
    launch: Mapping[str, Any] | None = None,
    served_model: str = "policy",
    api_key_env: str = "VLLM_API_KEY",
    weights_folder: str | None = None,
    request_timeout_s: float = 1800.0,
    lost_after_s: float = 120.0,
) -> VLLMAgent:
    """The agent that `agent: {backend: vllm, ...}` of a YAML names.

    Args:
        model: That is trained.
        tokenizer: The model's.
        urls: Of servers that run already; or
        launch: how to start some: the fields of `agents/vllm/launch.py:Launch`.
        served_model: The name that the servers serve the model under.
        api_key_env: See `VLLMAgent`, as for the following.
        weights_folder: For new weights.
        request_timeout_s: For one completion.
        lost_after_s: While no server answers.

    Raises:
        ConfigError: There are neither URLs nor a launch, or both; or a server cannot be used.
    """
    if (urls is None) == (launch is None):
        raise ConfigError(
            "agent.backend: vllm needs the urls of servers that run (urls: [http://...]) or how to "
            "start some (launch: {command: [/path/to/venv/bin/vllm]}), and one of the two alone"
        )
    launched = None
    if launch is not None:
        launched = Launched(make_launch(launch), model, tokenizer, served_model)
        urls = launched.urls
    assert urls is not None
    agent = VLLMAgent(
        urls,
        model=served_model,
        tokenizer=tokenizer,
        api_key_env=api_key_env,
        weights_folder=weights_folder,
        request_timeout_s=request_timeout_s,
        lost_after_s=lost_after_s,
    )
    if launched is not None:
        weakref.finalize(agent, Launched.end, launched)
    return agent
