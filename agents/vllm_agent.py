"""An agent that samples from vLLM servers, which have the policy's weights in other processes.

agents/vllm/wire.py       a request and its answer
agents/vllm/experts.py    which experts were chosen for each token
agents/vllm/checks.py     what must hold of the servers
agents/vllm/server.py     one server
agents/vllm/servers.py    several: which one is asked, what happens when one is lost
agents/vllm/versions.py   which weights an answer was sampled from
agents/vllm/weights       new weights
agents/vllm/launch.py     servers that a run starts; `vllm_trained.py` does
agents/vllm/connection.py what it has open in one process
"""

import asyncio
import os
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from gymnast.agents.engine.thread import BusyClock
from gymnast.agents.policy import PolicyWeights
from gymnast.agents.vllm.checks import Offer, check_one_process, check_servers, check_urls
from gymnast.agents.vllm.connection import Connection
from gymnast.agents.vllm.experts import ExpertLayers, check_experts
from gymnast.agents.vllm.server import Request, Server, open_session
from gymnast.agents.vllm.servers import Servers
from gymnast.agents.vllm.versions import KnownWeights, probe
from gymnast.agents.vllm.weights.choice import AUTO
from gymnast.agents.vllm.weights.handover import AdaptersRefused, CurrentWeights
from gymnast.agents.vllm.weights.sleeping import check_sleeps, give_back_cached_memory
from gymnast.agents.vllm.wire import check_sampling, generate_body, read_answer
from gymnast.errors import GymnastError, UsageError
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
        share_device: Whether the servers are on the trainer's device. Then they sleep outside of
            `awake`, and get new weights when they wake. They need `--enable-sleep-mode`.
        experts_of: The model that is trained, or its `ExpertLayers`, where completions are to say
            which experts were chosen (`trainer.replay_routing`). The servers need
            `--enable-return-routed-experts`.

    Attributes:
        urls: Of the servers' roots.
        samples_while_training: Whether they do not sleep; see `gymnast.agents.PolicyAgent`.
        repeatable: False: a server batches requests as they come, and a token's last bits depend on
            its batch.
        context_length: The shortest of the servers' longest contexts, in tokens.
        kept_across_weights: How many requests so far went on under new weights. Their keys and
            values were computed anew.
        keeps_experts: Whether completions say which experts were chosen.

    Raises:
        ConfigError: A server cannot be reached, or cannot be used as it was started.
        ModelError: Experts are to be kept, and the model has none that could be replayed.
    """

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
        share_device: bool = False,
        experts_of: Any = None,
    ) -> None:
        self.urls = check_urls(urls)
        given = experts_of is None or isinstance(experts_of, ExpertLayers)
        self._experts: ExpertLayers | None = experts_of if given else ExpertLayers.of(experts_of)
        self.keeps_experts = self._experts is not None
        check_one_process(share_device)
        self.samples_while_training = not share_device
        self._model, self._tokenizer = model, tokenizer
        self._api_key_env = api_key_env
        self._api_key = os.environ.get(api_key_env) if api_key is None else api_key
        self._request_timeout_s, self._lost_after_s = request_timeout_s, lost_after_s
        self._weights: CurrentWeights | None = CurrentWeights(
            None if weights_folder is None else Path(weights_folder),
            weights,
            model,
            shares_device=share_device,
        )
        self._awake = 0  # blocks that are open
        self._busy, self._under_way = BusyClock(), 0  # of requests
        self.kept_across_weights = 0
        self._known = self._weights.known
        self._connection: Connection | None = None
        self._opening = threading.Lock()
        self._is_closed = False
        self._close: Callable[[], object] | None = None
        self._ends: list[Callable[[], object]] = []
        try:
            offer = self._connected().run(self._begin(share_device))
        except BaseException:
            self.close()
            raise
        self.context_length, self._unused_ids = offer.context_length, offer.unused_ids

    async def _begin(self, share_device: bool) -> Offer:
        """What the servers offer; where they share a device, they sleep afterwards."""
        servers = self._connected().servers
        if share_device:
            await check_sleeps(servers.all)
            await servers.wake()  # somebody may have left them asleep
        checking = (servers.all, self._model, self._tokenizer)
        offer = await check_servers(*checking, needs_control=share_device)
        if self._experts is not None:
            await check_experts(servers.all, self._model, self._experts.check)
        if share_device:
            await servers.rest()
        return offer

    @property
    def version(self) -> int:
        """Of the weights; see `gymnast.agents.PolicyAgent`. In a copy, the least it accepts."""
        return self._known.version

    def __getstate__(self) -> dict[str, Any]:
        """For a copy in another process, which connects when it is used, and only samples."""
        here = {"_weights": None, "_tokenizer": None, "_connection": None, "_close": None}
        state: dict[str, Any] = self.__dict__ | here | {"_ends": [], "_opening": None}
        state |= {"_busy": BusyClock(), "_under_way": 0}
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
                parts: tuple[Any, ...] = (self._connection, (), self._ends)
                if (own := self._weights) is not None:
                    waking = partial(_leave_awake, self._connection.servers, self._ends)
                    parts = (self._connection, (waking, own.close), self._ends)
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
            sleep=self._weights.sleep if self._weights and self._weights.shares_device else None,
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
                as it is asked to; or the servers sleep.
            NoServers: No server is left.
            InfrastructureError: What the servers answer is no completion.
        """
        connection = self._connected()
        generating = self._generate(connection.servers, context_ids, sampling)
        return await asyncio.wrap_future(connection.begin(generating))

    @property
    def sampling_s(self) -> float:
        """Seconds in which a request was under way so far, as this process sees it."""
        return self._busy.seconds

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
        if servers.resting:
            raise UsageError(
                "generate: the vLLM servers sleep outside of `awake`, because they share the "
                "trainer's device (share_device); ask within `with agent.awake():`"
            )
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
            experts = None
            if self._experts is not None:
                experts = self._experts.read(sampled.experts, length + len(sampled.ids) - 1)
            return Completion(
                *(sampled.ids, sampled.logprobs, sampled.stop), versions=spans, experts=experts
            )

        self._under_way += 1
        self._busy.start()
        try:
            return await servers.generate(Request(context_ids, make_body, read))
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._busy.stop()

    @contextmanager
    def awake(self) -> Iterator[None]:
        """Within the block servers that share the trainer's device are awake; others always are.

        Raises:
            Exception: As `send_weights`, of weights that waited for the block.
        """
        if self._weights is None or not self._weights.shares_device:
            yield
            return
        connection, self._awake = self._connected(), self._awake + 1
        try:
            if self._awake == 1:
                give_back_cached_memory()
                self._load(connection, self._weights)
            yield
        finally:
            self._awake -= 1
            if not self._awake and not self._is_closed:
                connection.run(connection.servers.rest())

    def send_weights(self, weights: PolicyWeights, version: int) -> KnownWeights:
        """Give every server new weights; the agents of other processes follow what is returned.

        Servers that sleep load them when they wake; the model is to stay as it is until then, or
        until it is handed over again.

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
        if not connection.servers.resting:
            self._load(connection, own)
        return self._known

    def _load(self, connection: Connection, own: CurrentWeights) -> None:
        """Have all servers load the weights; those that sleep wake for it."""
        try:
            connection.run(connection.servers.wake())
        except AdaptersRefused as refused:
            own.merge_adapters(refused)
            connection.run(connection.servers.wake())
        own.sent()

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


async def _leave_awake(servers: Servers, ends: Sequence[object]) -> None:
    """Wake servers that sleep, unless they end now."""
    if servers.resting and not ends:
        with suppress(GymnastError):
            await servers.wake()
