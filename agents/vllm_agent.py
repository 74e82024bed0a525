"""An agent that samples from vLLM servers, which have the policy's weights in other processes.

agents/vllm/wire.py       a request and its answer
agents/vllm/checks.py     what must hold of the servers
agents/vllm/server.py     one server
agents/vllm/servers.py    several: which one is asked, what happens when one is lost
agents/vllm/versions.py   which weights an answer was sampled from
agents/vllm/weights       new weights
agents/vllm/launch.py     servers that a run starts
agents/vllm/connection.py what it has open in one process
"""

import asyncio
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from gymnast.agents.policy import PolicyWeights
from gymnast.agents.vllm.checks import check_servers, check_settings, check_urls, of_agent
from gymnast.agents.vllm.connection import Connection
from gymnast.agents.vllm.launch import Launched, make_launch
from gymnast.agents.vllm.launch_for_all import launch_for_all
from gymnast.agents.vllm.server import Request, Server, open_session
from gymnast.agents.vllm.servers import Servers
from gymnast.agents.vllm.versions import KnownWeights, probe
from gymnast.agents.vllm.weights.choice import AUTO
from gymnast.agents.vllm.weights.handover import AdaptersRefused, CurrentWeights
from gymnast.agents.vllm.weights.start import write_start
from gymnast.agents.vllm.wire import check_sampling, generate_body, read_answer
from gymnast.errors import UsageError
from gymnast.types import Completion, Sampling

LOST_AFTER_S = 120.0


class VLLMAgent:
    """Samples completions from one or more vLLM servers.

        agent = VLLMAgent(["http://127.0.0.1:8000"])
        completion = await agent.generate(ids, Sampling(max_new_tokens=32))

    The servers are vLLM 0.32 or later, started with `--enable-scale-out --logprobs-mode
    processed_logprobs` and, to be trained, `VLLM_SERVER_DEV_MODE=1` (docs/vllm.md).

    An agent that was pickled, or is used after a fork, is a copy: it connects by itself, samples
    from the same servers, and refuses what older weights sampled than those it was copied with.

    Args:
        urls: Of the servers' roots.
        model: The name that they serve the model under.
        tokenizer: The model's; ids beyond it are never sampled.
        api_key_env: The environment variable with the servers' key; none is sent where it is unset.
        api_key: The key itself, instead; copies of the agent hold it.
        weights: How new weights get to the servers: "auto", "folder", "adapters", "nccl" or "ipc".
        weights_folder: A folder that this process and the servers see, for new weights; by default
            in shared memory.
        request_timeout_s: How long one completion may take before its server counts as lost.
        lost_after_s: How long to wait for a server to come back while none answers.

    Attributes:
        urls: Of the servers' roots.
        samples_while_training: True; see `gymnast.agents.PolicyAgent`.
        repeatable: False: a server batches requests as they come, and a token's last bits depend on
            its batch.
        context_length: The shortest of the servers' longest contexts, in tokens.
        kept_across_weights: How many requests so far went on under new weights. Their keys and
            values were computed anew.

    Raises:
        ConfigError: A server cannot be reached, or cannot be used as it was started.
    """

    samples_while_training = True
    repeatable = False

    def __init__(
        self,
        urls: Sequence[str],
        *,
        model: str = "policy",
        tokenizer: Any = None,
        api_key_env: str = "VLLM_API_KEY",
        api_key: str | None = None,
        weights: str = AUTO,
        weights_folder: str | None = None,
        request_timeout_s: float = 1800.0,
        lost_after_s: float = LOST_AFTER_S,
    ) -> None:
        self.urls = check_urls(urls)
        self._model, self._tokenizer = model, tokenizer
        self._api_key_env = api_key_env
        self._api_key = os.environ.get(api_key_env) if api_key is None else api_key
        self._request_timeout_s, self._lost_after_s = request_timeout_s, lost_after_s
        self._weights: CurrentWeights | None = CurrentWeights(
            None if weights_folder is None else Path(weights_folder), weights, model
        )
        self.kept_across_weights = 0
        self._known = self._weights.known
        self._connection: Connection | None = None
        self._opening = threading.Lock()
        self._is_closed = False
        self._close: Callable[[], object] | None = None
        self._ends: list[Callable[[], object]] = []
        try:
            connection = self._connected()
            offer = connection.run(check_servers(connection.servers.all, model, tokenizer))
        except BaseException:
            self.close()
            raise
        self.context_length, self._unused_ids = offer.context_length, offer.unused_ids

    @property
    def version(self) -> int:
        """Of the weights; see `gymnast.agents.PolicyAgent`. In a copy, the least it accepts."""
        return self._known.version

    def __getstate__(self) -> dict[str, Any]:
        """For a copy in another process, which connects when it is used, and only samples."""
        here = {"_weights": None, "_tokenizer": None, "_connection": None, "_close": None}
        state: dict[str, Any] = self.__dict__ | here | {"_ends": [], "_opening": None}
        return state | {"_known": self._known.copied()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._opening = threading.Lock()

    def _connected(self) -> Connection:
        """This process's connection to the servers, opened when it is first needed."""
        with self._opening:
            if self._is_closed:
                raise UsageError("this VLLMAgent is closed; make another one")
            if self._connection is not None and not self._connection.is_ours:  # a fork
                self.__dict__ |= self.__getstate__() | {"_opening": self._opening}
            if self._connection is None:
                self._connection = Connection(self._open)
                weights = () if self._weights is None else (self._weights.close,)
                parts = (self._connection, weights, self._ends)
                self._close = weakref.finalize(self, Connection.close, *parts)
            return self._connection

    async def _open(self) -> Servers:
        session, name = open_session(self._api_key), self._known.name
        return Servers(
            [Server(url, session, self._api_key_env, name) for url in self.urls],
            self._weights or self._known,
            probe(self._model, self._known),
            request_timeout_s=self._request_timeout_s,
            lost_after_s=self._lost_after_s,
        )

    def check_takes_weights(self) -> None:
        """Check that the servers were started so that they take new weights.

        Raises:
            ConfigError: One was not.
        """
        connection = self._connected()
        servers = connection.servers.all
        connection.run(check_servers(servers, self._model, None, needs_control=True))

    async def generate(self, context_ids: list[int], sampling: Sampling) -> Completion:
        """Sample one completion of a context; see `gymnast.agents.Agent`.

        Raises:
            UsageError: The context is empty, or leaves no room for a token; or vLLM does not sample
                as it is asked to.
            NoServers: No server is left.
            InfrastructureError: What the servers answer is no completion.
        """
        connection = self._connected()
        generating = self._generate(connection.servers, context_ids, sampling)
        return await asyncio.wrap_future(connection.begin(generating))

    async def _generate(
        self, servers: Servers, context_ids: list[int], sampling: Sampling
    ) -> Completion:
        length = len(context_ids)
        if not 1 <= length < self.context_length:
            raise UsageError(
                f"generate: the context has {length} tokens, and must have 1 to "
                f"{self.context_length - 1} (context_length {self.context_length} with at least "
                "one sampled token). Set the environment's context_length to the agent's."
            )
        check_sampling(sampling)
        most = min(sampling.max_new_tokens, self.context_length - length)

        def make_body(sent: str) -> dict[str, Any]:
            return generate_body(
                context_ids,
                sampling,
                model=self._known.model(self._model, sent),
                max_tokens=most,
                version=sent,
                unused_ids=self._unused_ids,
            )

        def read(answer: Any, sent: str) -> Completion:
            sampled = read_answer(answer, sampling, most)
            spans = self._known.spans(sampled, sent)
            self.kept_across_weights += len(spans) > 1
            return Completion(sampled.ids, sampled.logprobs, sampled.stop, versions=spans)

        return await servers.generate(Request(context_ids, make_body, read))

    @contextmanager
    def awake(self) -> Iterator[None]:
        """Do nothing: the servers have a device of their own."""
        yield

    def send_weights(self, weights: PolicyWeights, version: int) -> KnownWeights:
        """Give every server new weights; the agents of other processes follow what is returned.

        Raises:
            NoServers: No server is left.
            ConfigError: A server refuses, or samples with other weights afterwards.
            DiskFull: There is no room for the weights.
            UsageError: This agent is a copy, made by pickle or by a fork, which only samples.
        """
        connection, own = self._connected(), self._own_weights()
        connection.run(own.choose(weights.model, connection.servers.all))
        lost = set(connection.servers.all) - set(connection.servers.up)
        own.write(weights.model, version, lost)
        try:
            connection.run(connection.servers.load_all())
        except AdaptersRefused as refused:
            own.merge_adapters(refused)
            own.write(weights.model, version, lost)
            connection.run(connection.servers.load_all())
        own.sent()
        return self._known

    def update_weights(self, weights: PolicyWeights, version: int) -> None:
        """Sample from new weights from now on, on the servers that report them.

        Raises:
            Exception: As `send_weights`, where that was not called before.
        """
        if weights.sent is None:
            self.send_weights(weights, version)
        elif weights.process_index > 0:
            connection = self._connected()
            self._own_weights().follow(weights.sent)
            connection.run(connection.servers.load_all())

    def _own_weights(self) -> CurrentWeights:
        if self._weights is None:
            raise UsageError(
                "update_weights: this VLLMAgent is a copy of one in another process, and only "
                "samples; hand weights over by the first one"
            )
        return self._weights

    def metrics(self) -> dict[str, float]:
        """Of this process's requests since this was last asked; see docs/metrics.md."""
        return self._connected().servers.metrics()

    def close(self) -> None:
        """Let go of the servers; those that were started for this agent end."""
        self._is_closed = True
        if self._close is not None:
            self._close()


def trained_vllm_agent(
    model: Any,
    tokenizer: Any,
    *,
    urls: Sequence[str] | None = None,
    launch: Mapping[str, Any] | None = None,
    served_model: str = "policy",
    api_key_env: str = "VLLM_API_KEY",
    weights: str = AUTO,
    weights_folder: str | None = None,
    request_timeout_s: float = 1800.0,
    lost_after_s: float | None = None,
) -> VLLMAgent:
    """The agent that `agent: {backend: vllm, ...}` of a YAML names.

    Args:
        model: That is trained.
        tokenizer: The model's.
        urls: Of servers that run already; or
        launch: how to start some: the fields of `agents/vllm/launch.py:Launch`. Of several
            training processes on one machine, the first starts them for all.
        served_model: The name that the servers serve the model under.
        api_key_env: See `VLLMAgent`, as for the following.
        weights: How new weights get to the servers.
        weights_folder: For new weights.
        request_timeout_s: For one completion.
        lost_after_s: How long to wait while no server answers; by default 120, and for servers that
            are started `launch.start_timeout_s`, because one that ends is started again.

    Raises:
        ConfigError: There are neither URLs nor a launch, or both; or a server cannot be used.
    """
    with of_agent(urls, launch):
        check_settings(urls, launch)
        launched, api_key = None, None
        wait_s = LOST_AFTER_S if lost_after_s is None else lost_after_s
        if launch is not None:
            how = make_launch(launch)
            write = partial(write_start, way=weights)
            start = partial(Launched, how, model, tokenizer, served_model, write=write)
            launched, (urls, api_key) = launch_for_all(start)
            wait_s = how.start_timeout_s if lost_after_s is None else lost_after_s
        assert urls is not None
        agent = VLLMAgent(
            urls,
            model=served_model,
            tokenizer=tokenizer,
            api_key_env=api_key_env,
            api_key=api_key,
            weights=weights,
            weights_folder=weights_folder,
            request_timeout_s=request_timeout_s,
            lost_after_s=wait_s,
        )
        if launched is not None:
            agent._ends.append(launched.end)
        agent.check_takes_weights()
    return agent
